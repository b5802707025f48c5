"""experiments.accuracy: arms, runs that are stopped and continued, and a checkpoint recomputed from its file."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from torch.utils.flop_counter import FlopCounterMode

from attnrank import data, sweep, training
from attnrank.data import SOURCES
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.accuracy import arms, runs, tables
from attnrank.experiments.shared import runs as shared_runs
from attnrank.experiments.upkeep import copies
from attnrank.models import VisionTransformer

TINY = tables._TINY[0] | {"heads": 2, "qk_dim": 3, "value_dim": 2, "depth": 2}

pytestmark = pytest.mark.usefixtures("one_thread")


# The grid


def parameters(setting):
    return sum(
        value.numel() for value in runs.untrained({"dataset": "cifar10", "patch": 4, "seed": 0} | setting).parameters()
    )


def test_arms_change_what_they_say():
    base = arms.BASES["photographs"] | {"intervention": "none"}
    whole = parameters(base)
    coupled = [arm | {"intervention": "none"} for arm in arms.coupled(base)]
    assert all(arm["heads"] * arm["qk_dim"] == 64 == arm["heads"] * arm["value_dim"] for arm in coupled)
    # equal but for nothing: d = h d_h leaves every matrix as large as it was
    assert {parameters(arm) for arm in coupled} == {whole}
    for arm in arms.same_parameters(base):
        assert abs(parameters(arm) - whole) <= base["depth"] * (2 * 64 + 1) / 2
    values = arms.same_parameters(base, "value_dim")
    assert [arm["value_dim"] for arm in values] == [1, 2, 4, 8, 16, 32]
    assert {parameters(arm) for arm in values} == {whole}
    assert {frozenset(k for k in base if arm[k] != base[k]) for arm in arms.only_scores(base)} == {
        frozenset(),
        frozenset(["qk_dim"]),
    }
    assert {frozenset(k for k in base if arm[k] != base[k]) for arm in arms.only_values(base)} == {
        frozenset(),
        frozenset(["value_dim"]),
    }
    assert {arm["heads"] for arm in arms.fixed_heads(base)} == {4}
    small = {"width": 16, "depth": 1, "heads": 8, "qk_dim": 8, "value_dim": 8, "mlp_width": 128, "intervention": "none"}
    for varied in ("qk_dim", "value_dim"):  # where half a unit of the MLP is little beside the biases of the heads
        sizes = [parameters(arm) - parameters(small) for arm in arms.same_parameters(small, varied)]
        assert len(sizes) > 3 and max(map(abs, sizes)) <= (2 * 16 + 1) / 2


@pytest.mark.parametrize("name", runs.INTERVENTIONS)
def test_interventions_change_what_they_say(name):
    setting = TINY | {"intervention": name, "qk_dim": 4}
    config, plain = runs.configuration(setting), runs.configuration(setting | {"intervention": "none"})
    changed = {
        field.name for field in dataclasses.fields(config) if getattr(config, field.name) != getattr(plain, field.name)
    }
    expected = {"none": set(), "sharp": {"temperature"}, "uniform": {"temperature"},
                "learned_temperature": {"learn_temperature"},
                "tied_qk_norm": {"tied", "qk_norm"},
                "frozen_qk_norm": {"frozen", "qk_norm"}}  # fmt: skip
    assert changed == expected.get(name, {name})
    assert name != "sharp" or config.temperature == 0.5  # a quarter of sqrt(4)
    assert name != "uniform" or config.temperature == 2e9  # 1e9 times sqrt(4): no score differs from another


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar100"])
def test_photographs_are_cropped_and_mirrored_and_digits_are_not(name, monkeypatch):
    facts, shape = SOURCES[name], SOURCES[name].shape
    generator = torch.Generator().manual_seed(0)

    def pixels(*asked):
        assert asked in ((name,), (name, "test"))
        drawn = torch.randint(int(facts.white) + 1, (64, *shape), generator=generator).to(torch.uint8)
        return drawn, torch.arange(64) % facts.classes

    monkeypatch.setattr(runs.data, "pixels", pixels)
    source = runs.source.__wrapped__(name)
    seen, whole = source.batch(0, 0, 0, 64)[0], source.standardised(source.train_images)
    same, mirrored = ((seen == x[source._order[1]]).flatten(1).all(1).sum() for x in (whole, whole.flip(-1)))
    assert (source.pad, source.flip) == ((0, False) if name == "digits" else (4, True))
    assert (same, mirrored) == (64, 0) if name == "digits" else same + mirrored < 16  # 64 / 81 on average
    mean, std = (torch.tensor(values)[:, None, None] for values in (facts.mean, facts.std))
    torch.testing.assert_close(whole, (source.train_images / facts.white - mean) / std)


def test_the_recipe_is_that_of_the_published_runs():
    """Every number of it: the page of the chapter prints what `recipe` gives, and no test trains photographs again."""
    for dataset, batch, rate in (("digits", 32, 6e-3), ("cifar10", 128, 2e-3), ("cifar100", 128, 2e-3)):
        expected = training.Recipe(
            7, batch=batch, rate=rate, warmup=0.1, final=0.0, decay=0.05, smoothing=0.1, clip=1.0, beta1=0.9,
            beta2=0.999,
        )  # fmt: skip
        assert runs.recipe(TINY | {"dataset": dataset, "epochs": 7}) == expected


def test_series_are_whole():
    for name, series in tables.SERIES.items():
        keys = [tuple(setting.items()) for setting in series]
        assert len(keys) == len(set(keys)) and 0 <= tables.FINISHED[name] <= len(series)
        assert len({setting["epochs"] for setting in series}) == 1  # identical budgets


def test_64_tokens_have_the_arms_of_16_line_by_line_after_the_predictions():
    budget = ("patch", "epochs")
    short, tokens = (tables.SERIES[name] for name in ("cifar10, short", "cifar10"))
    of = [[tuple(v for k, v in s.items() if k not in budget) for s in series] for series in (short, tokens)]
    assert set(of[0]) == set(of[1])
    lines = [arm for arm in tokens[45:] if arm["intervention"] == "none" and arm["mlp_width"] == 128]
    base = arms.BASES["photographs"]
    fixed = [arm["qk_dim"] for arm in lines if arm["heads"] == base["heads"] and arm["qk_dim"] == arm["value_dim"]]
    assert fixed == sorted(fixed)  # cheapest arms first
    assert lines[: len(fixed)] == tokens[45:48] + tokens[51 : 48 + len(fixed)] and len(fixed) == 18
    assert {(arm["qk_dim"], arm["value_dim"], arm["mlp_width"]) for arm in tokens[48:51]} == {(1, 16, 188)}
    assert [arm["heads"] for arm in lines[-18::3]] == [1, 2, 8, 16, 32, 64]


def test_the_arms_that_decide_come_first_with_64_tokens_too():
    """The page counts them: the same arms and seeds as with more epochs."""
    budget = ("patch", "epochs")
    shorter = tables.SERIES["cifar10, 16 tokens, long"]
    first = tables.SERIES["cifar10"][: len(shorter)]
    arms = [{tuple(v for k, v in s.items() if k not in budget) for s in series} for series in (first, shorter)]
    assert arms[0] == arms[1] and len(arms[0]) == 21


# One run


@pytest.fixture(scope="module")
def run(kept_runs):
    row, folder = kept_runs(lambda: runs.accuracy(**TINY))
    return row, shared_runs.run_file(TINY, folder), folder


def test_a_checkpoint_is_recomputed_from_its_file(run):
    """Accuracy, ranks, parameters and FLOPs from the weights in the file, in float64 and numpy, without the loop."""
    row, path, _ = run
    with safe_open(path, "pt") as file:
        weights = {
            name.removeprefix("model."): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
            if name.startswith("model.")
        }
    model = VisionTransformer(
        runs.configuration(TINY), image_size=8, patch_size=4, channels=1, classes=10, pool="sequence",
        dtype=torch.float64, generator=torch.Generator().manual_seed(99),
    )  # fmt: skip
    model.load_state_dict(weights)
    facts = SOURCES["digits"]
    images, labels = data.images("digits", "test")
    x = (images - facts.mean[0]) / facts.std[0]
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        logits = model(x)
    assert (logits.argmax(-1) == labels).double().mean().item() == pytest.approx(row["accuracy"], abs=1.5 / len(labels))
    assert row["flops_per_image"] * len(x) == counter.get_total_flops()
    assert row["training_flops"] == 3 * row["flops_per_image"] * SOURCES["digits"].rows("train") * TINY["epochs"]
    assert row["parameters"] == sum(value.numel() for value in weights.values())
    drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:32]
    ranks = []
    for q, k in model.queries_keys(x[drawn]):
        scores = (q @ k.mT).detach().numpy()
        ranks.append(np.mean([[len(set(m.argmax(1))) for m in image] for image in scores]) / 4)
    assert row["rank_after"] == pytest.approx(ranks[0], abs=0.01) and row["rank_after_all"] == pytest.approx(
        np.mean(ranks), abs=0.01
    )


def test_curves_and_ranks_are_those_of_the_run(run, monkeypatch):
    row, path, folder = run
    monkeypatch.setenv("ATTNRANK_RUNS", str(folder))
    runs._trained_run.cache_clear()
    before = path.stat().st_mtime_ns
    curve = [runs.accuracy_curves(**TINY, epoch=epoch) for epoch in (0, 1)]
    assert curve[1]["test_accuracy"] == row["accuracy"] and curve[0]["train_loss"] is None
    layers = [[runs.accuracy_ranks(**TINY, epoch=epoch, layer=layer) for layer in (1, 2)] for epoch in (0, 1)]
    assert layers[0][0]["hardmax"] == row["rank_before"] and layers[1][0]["hardmax"] == row["rank_after"]
    assert np.mean([layer["hardmax"] for layer in layers[1]]) == pytest.approx(row["rank_after_all"])
    assert all(a["hardmax_least"] <= a["hardmax"] <= a["hardmax_most"] for epoch in layers for a in epoch)
    assert path.stat().st_mtime_ns == before  # nothing was trained again
    with pytest.raises(ValueError, match="epoch must be at most 1, got 2"):
        runs.accuracy_curves(**TINY, epoch=2)
    monkeypatch.setenv("ATTNRANK_RUNS", str(folder / "missing"))
    with pytest.raises(ValueError, match="ATTNRANK_RUNS must name an existing folder"):
        shared_runs.runs_folder()


def test_the_same_row_without_a_folder_and_from_a_folder_of_the_sweep(run, tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNRANK_RUNS", raising=False)
    row, _, _ = run
    for folder in (None, tmp_path):
        again = runs.accuracy(**TINY, folder=folder)
        assert again | {"seconds": 0} == row | {"seconds": 0}
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [shared_runs.run_file(TINY, tmp_path).name]


def test_a_row_says_of_a_run_what_its_columns_are_called(monkeypatch):
    def entry(epoch, accuracy):
        ranks = [{"layer": layer, "hardmax": (10 * epoch + layer + head) / 100} for layer in (1, 2) for head in (0, 1)]
        return {"epoch": epoch, "test_accuracy": accuracy, "test_loss": 2.0 - accuracy, "train_accuracy": accuracy / 2,
                "ranks": ranks}  # fmt: skip

    run = training.Run(epochs=[entry(0, 0.1), entry(1, 0.7), entry(2, 0.6)], seconds=3.14159, threads=7)
    monkeypatch.setattr(runs, "trained", lambda setting, folder: (runs.untrained(setting), run, ""))
    row = runs.accuracy(**TINY | {"epochs": 2})
    expected = {"accuracy": 0.6, "best_accuracy": 0.7, "test_loss": 1.4, "train_accuracy": 0.3, "rank_before": 0.015,
                "rank_before_all": 0.02, "rank_after": 0.215, "rank_after_all": 0.22, "seconds": 3.1, "threads": 7,
                "training_flops": 6.0 * row["flops_per_image"] * SOURCES["digits"].rows("train")}  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_a_stopped_run_is_a_row_with_its_reason(monkeypatch):
    monkeypatch.setattr(runs, "recipe", lambda setting: training.Recipe(1, batch=32, rate=1e30, clip=None))
    row = runs.accuracy(**TINY)
    assert row["stopped"].startswith("the loss is") and row["accuracy"] is None and row["rank_after"] is None
    assert row["rank_before"] > 0 and row["parameters"] > 0 and len(row["stopped"]) < 1000
    assert not any(isinstance(value, float) and not math.isfinite(value) for value in row.values())


#: Margins of a brief run on digits: of losses 75 times the largest difference that was measured between processors.
CLOSE = {"train_loss": 5e-4, "test_loss": 5e-4, "train_accuracy": 0.01, "test_accuracy": 0.01}


def apart(curve, other):
    """By how many times its margin the worst of `CLOSE` differs, epoch by epoch."""
    return max(np.max(abs(curve[name].to_numpy(float) - other[name].to_numpy(float)) / CLOSE[name]) for name in CLOSE)


def test_a_published_run_is_trained_again(tmp_path, monkeypatch):
    """A run of a few seconds, drawn from nine: compared as its table declares, and its curve within `CLOSE`.

    Training of two epochs has not amplified rounding yet. Over the nine runs losses differ by 6.4e-6 at most, and
    accuracies by nothing, between the stored run and this processor's, ATEN_CPU_CAPABILITY=default and avx2,
    MKL_CBWR=COMPATIBLE, each with one thread and with two. Another run's row or curve is refused (control): the
    losses of another seed, dimension or temperature differ by 0.012 or more after either epoch.
    """
    monkeypatch.setenv("ATTNRANK_RUNS", str(tmp_path))  # the curve is that of the run of the row
    runs._trained_run.cache_clear()
    experiment, generator = EXPERIMENTS["accuracy"], torch.Generator()
    generator.seed()
    again = sweep.recompute(
        "accuracy", experiment.function, rows=1, generator=generator, checkpoint=True,
        accept=lambda setting: setting["dataset"] == "digits" and setting["epochs"] == 2,
    )  # fmt: skip
    setting = again.iloc[0][list(tables._TINY[0])].to_dict()
    curve = pd.DataFrame([runs.accuracy_curves(**setting, epoch=epoch) for epoch in (1, 2)])
    published = by_setting("accuracy_curves", "epoch")
    stored = {at: published.loc[tuple(brief.values())].loc[[1, 2]]
              for at, brief in enumerate(tables.SERIES["digits, brief"])}  # fmt: skip
    own = tables.SERIES["digits, brief"].index(setting)
    assert apart(curve, stored[own]) <= 1, setting
    last = sweep.read("accuracy").loc[again.index[0]]
    assert abs(again.test_loss.iloc[0] - last.test_loss) <= CLOSE["test_loss"]
    assert abs(again.accuracy.iloc[0] - last.accuracy) <= CLOSE["test_accuracy"]
    for first, second in itertools.combinations(stored.values(), 2):
        assert all(apart(first.iloc[[at]], second.iloc[[at]]) > 20 for at in (0, 1))


def test_the_command_trains_what_is_missing(tmp_path, monkeypatch, capsys):
    from attnrank.experiments.accuracy import __main__ as command

    monkeypatch.setitem(tables.SERIES, "digits", [TINY | {"seed": 7}, TINY, TINY | {"seed": 1}])
    monkeypatch.setitem(tables.FINISHED, "digits", 1)  # the first is published: it is not trained again
    monkeypatch.delenv("ATTNRANK_RUNS", raising=False)
    assert command.main(["digits"]) == 1 and "ATTNRANK_RUNS" in capsys.readouterr().err
    monkeypatch.setenv("ATTNRANK_RUNS", str(tmp_path))
    with FileLock(f"{shared_runs.run_file(TINY, tmp_path)}.lock"):
        assert command.main(["digits"]) == 0  # another process trains it
    assert "digits: 1 of 2 runs are finished" in capsys.readouterr().out
    assert command.main(["digits"]) == 0
    assert "digits: 2 of 2 runs are finished" in capsys.readouterr().out
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert command.main(["digits"]) == 0 and len(before) == 2
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")} == before
    tensors, record = training.load(path := shared_runs.run_file(TINY, tmp_path))
    record["progress"]["epochs"].pop()  # as of a run that was interrupted
    training.save(path, tensors, record)
    assert command.is_finished(TINY | {"seed": 1}) and not command.is_finished(TINY)
    monkeypatch.setitem(tables.FINISHED, "digits", 3)
    assert command.main(["digits"]) == 0 and capsys.readouterr().out.endswith("digits: all 3 runs are published\n")


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    """A line and a status, where there would be a traceback."""
    from attnrank.experiments.accuracy import __main__ as command

    def fails(setting="digits, brief", *options, error=None, folder=tmp_path):
        def compute(**setting):
            raise error

        monkeypatch.setenv("ATTNRANK_RUNS", str(folder))
        status = command.main([setting, *options], series={"digits, brief": [TINY]}, published={"digits, brief": 0},
                              compute=compute)
        return status, capsys.readouterr().err

    assert fails("digits, brief", "--threads", "0") == (1, "error: --threads must be at least 1, got 0\n")
    assert fails(error=FileNotFoundError("there are no parquet files")) == (1, "error: there are no parquet files\n")
    assert fails(error=ImportError("datasets is needed here")) == (1, "error: datasets is needed here\n")
    assert fails(error=KeyboardInterrupt()) == (130, "interrupted\n")
    file = shared_runs.run_file(TINY, tmp_path)
    file.write_bytes(b"not a model")
    status, message = fails()
    assert status == 1 and f"error: {file}: damaged" in message and "delete the file to train" in message
    status, message = fails(folder=file)
    assert status == 1 and message.startswith("error: ATTNRANK_RUNS must name an existing folder")


# The published tables


def by_setting(name, *more):
    """A published table, its settings as index; of runs that were not stopped."""
    table, index = sweep.read(name), [*tables._TINY[0], *more]
    reasons = sweep.read("accuracy").set_index(list(tables._TINY[0])).stopped
    table = table.set_index(index).sort_index()
    return table[(table.index.droplevel(more) if more else table.index).isin(reasons[reasons == ""].index)]


def contradictions(rows, curves, ranks):
    """Columns of the accuracies that are not what curves and ranks say of the same setting."""
    settings = list(tables._TINY[0])

    def at(table, last, *more):
        epoch = table.index.get_level_values("epoch")
        return table[epoch == (table.index.get_level_values("epochs") if last else 0)].droplevel(["epoch", *more])

    ends = {when: ranks.pipe(at, when == "after").hardmax for when in ("before", "after")}
    final = at(curves, True)
    expected = {
        "accuracy": final.test_accuracy, "test_loss": final.test_loss, "train_accuracy": final.train_accuracy,
        "best_accuracy": curves.groupby(settings).test_accuracy.max(),
        **{f"rank_{when}": rank.xs(1, level="layer") for when, rank in ends.items()},
        **{f"rank_{when}_all": rank.groupby(settings).mean() for when, rank in ends.items()},
    }  # fmt: skip
    rounded = {name: 5.1e-7 if name.startswith("rank") else 0.0 for name in expected}  # ranks to six decimals
    alike = {name: values.index.equals(rows.index) and np.allclose(values, rows[name], rtol=1e-12, atol=rounded[name])
             for name, values in expected.items()}  # fmt: skip
    return {name for name, same in alike.items() if not same}


def test_the_three_tables_are_of_the_same_runs():
    """Rows against curve and ranks of their setting; two rows with each other's results are seen (control)."""
    rows, curves = by_setting("accuracy"), by_setting("accuracy_curves", "epoch")
    ranks = by_setting("accuracy_ranks", "epoch", "layer")
    epochs = curves.reset_index("epoch").groupby(list(tables._TINY[0])).epoch
    assert (epochs.nunique() == rows.index.get_level_values("epochs") + 1).all()
    assert contradictions(rows, curves, ranks) == set()
    for first, second in ((0, 1), (-1, -2), (3, -3)):
        changed = rows.copy()
        changed.iloc[[first, second]] = rows.iloc[[second, first]].to_numpy()
        assert {"accuracy", "test_loss", "rank_after_all"} <= contradictions(changed, curves, ranks)


def test_runs_that_start_from_one_model_have_its_rank():
    """Values, MLP, temperature and freezing change nothing of the first block's best keys; another seed does."""
    rows = sweep.read("accuracy")
    same = rows.intervention.replace(["frozen", "sharp", "uniform", "learned_temperature"], "none")
    same = same.replace("frozen_qk_norm", "qk_norm")
    model = ["dataset", "patch", "width", "depth", "heads", "qk_dim", "same", "epochs"]
    groups = rows.assign(same=same).groupby([*model, "seed"])
    assert (groups.rank_before.nunique() == 1).all() and groups.size().max() > 3
    # a seed in another's place is seen: in nine of ten models no two seeds have the same rank
    seeds = groups.rank_before.first().reset_index()
    seeds = seeds[(seeds.same != "tied_qk_norm") & (seeds.qk_dim > 1)].groupby(model).rank_before
    apart = seeds.nunique() == seeds.size()
    assert apart.mean() > 0.9


def test_rows_have_the_size_and_the_cost_of_their_arm():
    rows = sweep.read("accuracy")
    for _, arm in rows.groupby([*arms.SHAPE, "dataset", "patch"]):
        setting = arm.iloc[0][list(tables._TINY[0])].to_dict()
        model = runs.untrained(setting)
        sizes = [value.numel() for value in model.parameters()]
        trained = [value.numel() for value in model.parameters() if value.requires_grad]
        flops = training.image_flops(model)
        name = setting["dataset"]  # of CIFAR-100 a part of the training images is in the published copy
        images = copies.PUBLISHED[name][0] if name in copies.PUBLISHED else SOURCES[name].rows("train")
        assert (arm.parameters == sum(sizes)).all() and (arm.trained_parameters == sum(trained)).all()
        assert (arm.flops_per_image == flops).all() and (arm.n == model.tokens).all()
        assert (arm.training_flops == 3 * flops * images * arm.epochs).all()
        every, epochs = SOURCES[name].rows("train"), int(setting["epochs"])  # predictions know no partial copy
        steps = epochs * math.ceil(every / runs.recipe(setting).batch)
        seconds = runs.STEP * steps + training.training_flops(model, every * epochs) / runs.SPEED
        assert runs.seconds_to_train(setting) == pytest.approx(seconds, rel=1e-12)


def test_rows_take_about_as_long_as_predicted():
    """Seconds of two epochs are mostly those of the beginning, and of CIFAR-100 two fifths of the images are there."""
    rows = sweep.read("accuracy")
    rows = rows[(rows.device == "cpu") & (rows.epochs > 2) & (rows.dataset != "cifar100")]
    for _, series in rows.groupby(["dataset", "patch", "width", "epochs"]):
        predicted = [runs.seconds_to_train(setting) for setting in series[list(tables._TINY[0])].to_dict("records")]
        assert 1 / 4 < np.median(series.seconds / predicted) < 4


def begun(of):
    """What a run of digits begins with: loss and accuracy of the model that is not trained, rank of its first block."""
    source, model = runs.source("digits"), runs.untrained(of)
    ranks = training.attention_ranks(model, runs.probe_images("digits"), spectra=1)
    rank = np.mean([rank["hardmax"] for rank in ranks if rank["layer"] == 1])
    return np.array([*source.test(model).values(), rank])


def test_digits_begin_with_what_their_setting_gives():
    """Arm and seed of twelve rows drawn at random; and hardly another model's row is as near (control)."""
    rows, names = sweep.read("accuracy"), list(tables._TINY[0])
    first = by_setting("accuracy_curves", "epoch").xs(0, level="epoch")
    stored = rows[(rows.dataset == "digits") & (rows.stopped == "")]
    values = first.loc[pd.MultiIndex.from_frame(stored[names]), ["test_loss", "test_accuracy"]].to_numpy()
    values = np.column_stack([values, stored.rank_before])
    margins = np.array([1e-5, 1.5 / SOURCES["digits"].rows("test"), 0.002])
    drawn = np.random.default_rng().choice(len(stored), 12, replace=False)
    for at in drawn:
        setting = stored.iloc[at][names].to_dict()
        assert (abs(begun(setting) - values[at]) <= margins).all(), setting
    alike = (abs(values[:, None] - values) <= margins).all(2)
    drawn_from = stored[[*arms.SHAPE, "patch", "seed"]].replace(["frozen", "learned_temperature"], "none")
    drawn_from = drawn_from.replace("frozen_qk_norm", "qk_norm")
    model = drawn_from.groupby(list(drawn_from)).ngroup().to_numpy()
    mistaken = (alike & (model[:, None] != model)).any(1)
    assert mistaken.mean() < 0.05, stored[mistaken]
