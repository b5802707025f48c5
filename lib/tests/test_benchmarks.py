"""The harness of the benchmarks, on fake clocks and tiny inputs: no test here depends on how fast anything is."""

import contextlib
import dataclasses
import math
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch

from attnrank import sweep
from attnrank.benchmarks import (
    CONTESTS,
    brand,
    compare,
    contests,
    extra_gpu_memory,
    extra_memory,
    interleaved,
    machine,
    probing,
    processor,
)
from attnrank.benchmarks.__main__ import _cases, line, main
from attnrank.benchmarks.contests import TILE, one_hot_rank, queries_and_keys, tiled_product
from attnrank.experiments import EXPERIMENTS
from attnrank.experiments.measuring_speed import cases, speed
from attnrank.ranks import hardmax_rank


class Machine:
    """Routines that take a given time on a clock of its own, and a record of who was called."""

    def __init__(self, slowing=1.0):
        self.now, self.pace, self.slowing, self.calls = 0.0, 1.0, slowing, []

    def routine(self, name, cost):
        def work():
            self.calls.append(name)
            self.now += cost * self.pace
            self.pace *= self.slowing

        return work

    def clock(self):
        return self.now


def test_routines_take_turns_and_the_first_calls_do_not_count():
    machine = Machine()
    routines = [machine.routine("a", 1.0), machine.routine("b", 3.0)]
    assert interleaved(routines, 3, clock=machine.clock) == [[1.0] * 3, [3.0] * 3]
    assert "".join(machine.calls) == "ab" + "ab" + "ba" + "ab"
    machine.calls.clear()
    interleaved(routines, 2, warm=False, clock=machine.clock)
    assert "".join(machine.calls) == "ab" + "ba"


def test_a_short_routine_is_called_several_times_in_its_turn_and_the_mean_counts():
    machine = Machine()
    routines = [machine.routine("a", 1.0), machine.routine("b", 3.0)]
    assert interleaved(routines, 2, turn=2.5, clock=machine.clock) == [[1.0] * 2, [3.0] * 2]
    assert "".join(machine.calls) == "aab" + "aaab" + "baaa"
    drifting = Machine(slowing=2.0)  # the first call takes 1 s, the second 2 s: two calls last a turn
    assert interleaved([drifting.routine("a", 1.0)], 1, turn=3.0, clock=drifting.clock) == [[(4 + 8) / 2]]


def test_turns_cancel_a_drift_that_separate_runs_do_not():
    machine = Machine(slowing=1.1)
    turns = interleaved([machine.routine("a", 1.0), machine.routine("b", 2.0)], 8, warm=False, clock=machine.clock)
    assert compare(*turns).ratio == pytest.approx(2.0, rel=0.06)
    machine = Machine(slowing=1.1)
    alone = [
        interleaved([machine.routine(n, c)], 8, warm=False, clock=machine.clock)[0] for n, c in (("a", 1), ("b", 2))
    ]
    assert compare(*alone).ratio > 3


def test_ratios_are_of_medians_with_the_spread_of_rounds():
    ratio = compare([1.0, 2.0, 9.0], [4.0, 4.0, 9.0])
    assert (ratio.seconds, ratio.baseline_seconds, ratio.ratio) == (2.0, 4.0, 2.0)
    assert (ratio.low, ratio.high) == (1.0, 4.0)


def test_a_turn_that_the_first_call_fills_is_one_call():
    machine = Machine(slowing=0.5)  # the first call takes 4 s, the second would take 2 s
    interleaved([machine.routine("a", 4.0)], 1, turn=4.0, clock=machine.clock)
    assert "".join(machine.calls) == "aa"


def test_memory_on_a_gpu_is_what_work_adds_at_its_peak(monkeypatch):
    used = {"now": 5, "peak": 9}
    for name, value in (
        ("synchronize", lambda: None), ("memory_allocated", lambda: used["now"]),
        ("max_memory_allocated", lambda: used["peak"]),
        ("reset_peak_memory_stats", lambda: used.update(peak=used["now"])),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    assert extra_gpu_memory(lambda: used.update(peak=used["now"] + 3)) == 3.0
    assert extra_gpu_memory(lambda: None) == 0.0


def test_probing_costs_so_many_forward_passes(monkeypatch):
    monkeypatch.setattr(probing, "rounds_of", lambda n, rank, rounds: ([6.0, 6.0, 9.0], [3.0, 3.0, 3.0]))
    assert probing.costs(16, ("hardmax",)) == {"hardmax": 2.0}


@pytest.mark.parametrize(
    ("ratio", "bar", "expected"),
    [
        (4.0, ">= 4", "met"),
        (3.999, ">= 4", "missed"),
        (1.0, "<= 1", "met"),
        (1.001, "<= 1", "missed"),
        (0.1, "", "no bar"),
    ],
)
def test_verdicts(ratio, bar, expected):
    assert speed.verdict(ratio, bar) == expected


def test_a_bar_must_be_readable():
    with pytest.raises(ValueError, match="bar must be one of <=, >=; got '>'"):
        speed.verdict(1.0, "> 4")


def test_contestant_and_baseline_of_a_contest_answer_the_same_question():
    q, k = queries_and_keys(40, 6, 3, "float64", "cpu")
    assert hardmax_rank(q, k).tolist() == one_hot_rank(q, k).tolist()
    for name, contest in CONTESTS.items():
        if name == "product":
            continue  # a floor, not an answer
        contestant, baseline, *floor = contest.prepare(n=40, d_h=6, batch=3, dtype="float64", device="cpu")
        answer, reference = contestant(), baseline()
        assert bool(floor) == (name == "one-hot")
        if "spectrum" in name:
            tol = 1e-3 * (reference[:, :1] if "relative" in name else 1.0)
            reference = (reference >= tol).sum(-1)
        assert answer.tolist() == reference.tolist(), name


def test_the_floor_is_the_product_of_queries_and_keys(monkeypatch):
    """In float32, whatever the precision of the contestants."""
    seen = []
    monkeypatch.setattr(contests, "tiled_product", lambda q, k: seen.append((q, k)))
    q, k = queries_and_keys(16, 4, 2, "float64", "cpu")
    for name in ("one-hot", "product"):
        CONTESTS[name].prepare(n=16, d_h=4, batch=2, dtype="float64", device="cpu")[-1]()
        assert all(torch.equal(own, given.float()) for own, given in zip(seen.pop(), (q, k), strict=True))


def test_the_tiled_product_computes_every_score_once(monkeypatch):
    computed = []
    mm = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: computed.append(mm(a, b, out=out).clone()))
    q, k = queries_and_keys(TILE[0] + 3, 2, 1, "float64", "cpu")
    tiled_product(q, k)
    upper, lower = torch.cat(computed[:2], 1), torch.cat(computed[2:], 1)
    assert len(computed) == 4 and torch.allclose(torch.cat([upper, lower]), q[0] @ k[0].mT)


def test_a_row_says_what_was_measured_and_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    row = speed.speed("one-hot", 16, 4, 2, "float32", 2, "cpu", ">= 1e9", 3, processor())
    assert torch.get_num_threads() == threads
    assert row["seconds"] > 0 and row["low"] <= row["ratio"] <= row["high"] and row["machine"] == machine()
    assert row["verdict"] == "missed" and " missed" in line(row | _setting("one-hot", ">= 1e9"))
    assert row["limit"] > 0 and f"(limit {row['limit']:.0f})" in line(row | _setting("one-hot", ">= 1e9"))
    assert speed.speed("argmax", 16, 4, 2, "float32", 1, "cpu", ">= 1", 3, processor())["limit"] is None
    rate = speed.roofline("automatic", 32, 4, "float32", 1, 3, processor())
    assert rate["rate"] == pytest.approx(2 * 32 * 32 * 4 / rate["seconds"] / 1e9) and rate["peak"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so it is measured")
@pytest.mark.parametrize("contest", ["one-hot", "memory", "spectrum"])
def test_without_a_gpu_its_rows_say_so(contest):
    row = speed.speed(contest, 16, 4, 2, "float32", 1, "cuda", ">= 10", 3, processor())
    assert row["verdict"] == "not measured" and row["seconds"] is row["ratio"] is None
    assert line(row | _setting(contest, ">= 10")).endswith("not measured here   (bar >= 10)")
    assert line(row | _setting(contest, "")).endswith("not measured here")


def test_an_unknown_contest_is_refused():
    with pytest.raises(ValueError, match="contest must be one of argmax, argmax by rows, dense, .*; got 'race'"):
        speed.speed("race", 16, 4, 2, "float32", 1, "cpu", "", 3, processor())


def test_rows_of_another_processor_are_not_measured_here():
    for call in (
        lambda: speed.speed("argmax", 16, 4, 2, "float32", 1, "cpu", "", 3, "abacus"),
        lambda: speed.roofline("product", 16, 4, "float32", 1, 3, "abacus"),
    ):
        with pytest.raises(ValueError, match="processor must be the one at hand, .*, got 'abacus'"):
            call()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.50GHz (family 6, model 85)", "Intel Xeon model 85"),
        ("AMD EPYC (family 25, model 17)", "AMD EPYC model 17"),
        ("AMD EPYC (family 25, model 1)", "AMD EPYC model 1"),
        ("Apple M2 Pro", "Apple M2"),
        ("arm64", "arm64"),
    ],
)
def test_the_brand_of_a_processor(name, short):
    assert brand(name) == short


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model name\t: Fast\ncpu family\t: 6\nmodel\t\t: 143\n\nmodel name\t: Slow\n", "Fast (family 6, model 143)"),
        ("model name\t: Fast 1\n", "Fast 1"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nCPU part\t: 0xd40\n", "arm (implementer 0x41, part 0xd0c)"),
    ],
)
def test_the_model_of_the_processor(monkeypatch, text, expected):
    monkeypatch.setattr("pathlib.Path.read_text", lambda *path, **options: text)
    monkeypatch.setattr("platform.machine", lambda: "arm")
    assert processor() == expected and machine().startswith(expected)


@pytest.mark.parametrize("system, command, expected", [
    ("darwin", [sys.executable, "-c", "print('Apple M2 Pro')"], "Apple M2 Pro"),
    ("darwin", [sys.executable, "-c", "exit(1)"], "arm"),
    ("darwin", ["no such program"], "arm"),
    ("win32", [sys.executable, "-c", "print('Apple M2 Pro')"], "arm"),
])
def test_the_name_of_the_processor_without_a_list_of_processors(system, command, expected, monkeypatch):
    def missing(*path, **options):
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", missing)
    monkeypatch.setattr("platform.processor", lambda: "arm")
    monkeypatch.setattr("attnrank.benchmarks.timing.BRAND", command)
    monkeypatch.setattr("sys.platform", system)
    assert processor() == expected


@pytest.mark.skipif(sys.platform == "win32", reason="the operating system does not say")
def test_extra_memory_sees_what_a_process_takes_and_gives_back():
    code = "def work():\n    block = bytearray({0})\n    block[::4096] = bytes(len(block[::4096]))\n    del block"
    assert 60e6 < extra_memory(code.format(64 * 2**20)) < 100e6
    assert extra_memory("def work():\n    pass") < 10e6


def test_tables_of_times_are_marked_and_hold_every_bar():
    assert EXPERIMENTS["speed"].repeats == EXPERIMENTS["roofline"].repeats == sweep.Measured()
    rows = EXPERIMENTS["speed"].paper
    bars = {(row["contest"], row["n"], row["d_h"], row["device"], row["bar"]) for row in rows}
    assert {
        *(("argmax", n, d_h, "cpu", ">= 1") for n, d_h in ((64, 16), (128, 64), (512, 64), (16384, 128))),
        ("one-hot", 512, 8, "cpu", ">= 200"),
        ("one-hot", 512, 64, "cpu", ""),  # no routine that computes the scores could
        ("product", 512, 64, "cpu", ">= 0.75"),
        ("product", 4096, 64, "cpu", ">= 0.75"),
        ("product", 16384, 64, "cpu", ">= 0.8"),
        ("product", 131072, 64, "cuda", ">= 0.8"),
        ("product", 131072, 8, "cpu", ">= 10"),
        ("product", 131072, 16, "cpu", ">= 2"),
        ("dense", 16384, 64, "cpu", ">= 0.952"),
        ("memory", 262144, 8, "cpu", "<= 1"),
        ("spectrum", 256, 8, "cpu", ">= 4"),
        ("spectrum", 512, 64, "cpu", ">= 4"),
        ("spectrum", 512, 64, "cuda", ">= 10"),
    } <= bars
    assert math.isclose(1 / 0.8, 1.25) and 1 / 0.952 < 1.0505  # as times: at most 1.25 of the floor, at most 5% more


@pytest.mark.parametrize("there", [False, True])
def test_rows_of_a_gpu_are_measured_where_there_is_one(there, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    found = _cases(EXPERIMENTS["speed"].paper)
    assert {case["device"] for case in found} == ({"cpu", "cuda"} if there else {"cpu"})
    assert sum(case["device"] == "cuda" for case in found) == there * len(cases.GPU_CASES)
    assert not any("processor" in case for case in found)
    assert len(_cases(EXPERIMENTS["roofline"].paper)) == len(cases.ROOFLINE)


def test_the_quick_rows_claim_nothing():
    """Bars are for the shapes of the published rows: at n = 64 a one-hot matrix is not 200 times as slow."""
    assert {row["bar"] for row in EXPERIMENTS["speed"].quick} == {""}


@pytest.fixture
def one_row_each(monkeypatch):
    """The tables cut to the first row of the quick profile, at n = 16; returns what has been measured."""
    calls = []

    def measured(**setting):
        calls.append(setting)
        return speed.speed(**setting | {"n": 16})

    def rate(**setting):
        return speed.roofline(**setting | {"n": 16})

    for name, function in (("speed", measured), ("roofline", rate)):
        experiment = EXPERIMENTS[name]
        row = experiment.quick[:1]
        changed = dataclasses.replace(experiment, function=function, quick=row, paper=row)
        monkeypatch.setitem(speed.EXPERIMENTS, name, changed)
    return calls


def test_the_command_measures_anew_and_prints_every_ratio(tmp_path, one_row_each, capsys):
    tmp_path /= "new"
    for _ in range(2):
        main(["--quick", "--folder", str(tmp_path)])
        printed = capsys.readouterr().out
        assert machine() in printed and "argmax and count" in printed and "peak" in printed
    assert len(one_row_each) == 2
    assert len(sweep.read("speed-quick", folder=tmp_path)) == 1


def test_rows_of_other_processors_are_kept(tmp_path, one_row_each, monkeypatch, capsys):
    here = processor()
    main(["--folder", str(tmp_path)])
    before = sweep.read("speed", folder=tmp_path)
    for module in ("attnrank.benchmarks.__main__", "attnrank.experiments.measuring_speed.speed"):
        monkeypatch.setattr(f"{module}.processor", lambda: "abacus")
    for _ in range(2):
        main(["--folder", str(tmp_path)])
        assert here not in capsys.readouterr().out.splitlines()
    after = sweep.read("speed", folder=tmp_path)
    assert after.processor.tolist() == [here, "abacus"] and len(one_row_each) == 3
    pd.testing.assert_frame_equal(after[:1], before)
    assert sweep.read("roofline", folder=tmp_path).processor.tolist() == [here, "abacus"]


def test_rows_are_in_the_order_of_the_published_table(tmp_path, one_row_each, monkeypatch, capsys):
    """Whichever processor was measured last."""
    for name, experiment in speed.EXPERIMENTS.items():
        row = experiment.paper[0]
        both = [row | {"processor": "abacus"}, row]
        monkeypatch.setitem(speed.EXPERIMENTS, name, dataclasses.replace(experiment, paper=both))
    main(["--folder", str(tmp_path)])
    expected = ["abacus", processor()]
    for module in ("attnrank.benchmarks.__main__", "attnrank.experiments.measuring_speed.speed"):
        monkeypatch.setattr(f"{module}.processor", lambda: "abacus")
    main(["--folder", str(tmp_path)])
    for name in speed.EXPERIMENTS:
        assert sweep.read(name, folder=tmp_path).processor.tolist() == expected


def test_what_was_interrupted_goes_on_where_it_stopped(tmp_path, one_row_each, monkeypatch, capsys):
    calls, stopped = [], set()
    for name, experiment in speed.EXPERIMENTS.items():

        def function(name=name, measured=experiment.function, **setting):
            calls.append((name, setting["rounds"]))
            if setting["rounds"] == 4 and name not in stopped:
                stopped.add(name)
                raise KeyboardInterrupt
            return measured(**setting)

        rows = [experiment.paper[0] | {"rounds": rounds} for rounds in (3, 4)]
        monkeypatch.setitem(speed.EXPERIMENTS, name, dataclasses.replace(experiment, function=function, paper=rows))
    for expected in (
        [("speed", 3), ("speed", 4)],
        [("speed", 4), ("roofline", 3), ("roofline", 4)],
        [("roofline", 4)],
        [("speed", 3), ("speed", 4), ("roofline", 3), ("roofline", 4)],  # whole, and measured anew
    ):
        calls.clear()
        with pytest.raises(KeyboardInterrupt) if len(expected) in (2, 3) else contextlib.nullcontext():
            main(["--folder", str(tmp_path)])
        assert calls == expected


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(SystemExit, match="2"):
            main(["--quick", "--folder", str(folder)])
        assert re.search("error: --folder must be a folder, or one that can be made: .*file", capsys.readouterr().err)


def test_help_of_the_command():
    result = subprocess.run([sys.executable, "-m", "attnrank.benchmarks", "--help"], capture_output=True, check=True)
    assert b"--quick" in result.stdout


def _setting(contest, bar):
    return {
        "contest": contest,
        "n": 16,
        "d_h": 4,
        "batch": 2,
        "dtype": "float32",
        "threads": 1,
        "device": "cpu",
        "bar": bar,
        "processor": processor(),
    }
