"""python -m attnrank.probe: a folder with a model, a text or images, a table and a picture."""

from __future__ import annotations

import json
import shutil
import sys

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from attnrank import probe
from attnrank.probe.__main__ import _parser, draw, main, summary

tf = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    config = tf.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    torch.manual_seed(0)
    tf.BertModel(config).save_pretrained(folder)
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", *"abcdefghijklmnop"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", model_max_length=64)
    fast.save_pretrained(folder)
    return folder


def test_a_text(text_model, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(" ".join("abcdefghijklmnop" * 3), encoding="utf-8")
    out = tmp_path / "deep" / "bert"
    assert main([str(text_model), "--text", str(text), "--length", "20", "--out", str(out), "--tol", "0.1"]) == 0
    table = pd.read_csv(f"{out}.csv")
    assert (tmp_path / "deep" / "bert.png").stat().st_size > 1000
    model = tf.BertModel.from_pretrained(text_model)
    ids = torch.tensor([[4 + i % 16 for i in range(start, start + 20)] for start in (0, 20)])
    expected = probe(model, [{"input_ids": part[None]} for part in ids], tol=0.1)
    assert list(table.columns[8:10]) == ["numerical_rank", "tol"] and set(table.pop("tol")) == {0.1}
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=1e-4)
    printed = capsys.readouterr().out
    assert "encoder.layer.1.attention.self" in printed and "bert.csv has a row for each head" in printed
    assert "Rings: above the bound by more than sqrt(n)" in printed
    assert "Numerical ranks count singular values of at least 0.1." in printed


def test_rings_are_for_what_chance_does_not_reach(tmp_path, monkeypatch):
    """The heads that reading.md selects, above the bound by more than the square root of n."""
    heads = pd.DataFrame({"layer": "a", "head": range(3), "n": 16, "hardmax_rank": [10.5, 14.0, 14.5], "bound": 10.3})
    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    draw(heads, str(tmp_path / "picture.png"))
    monkeypatch.undo()
    (rings,) = drawn[0].axes[0].lines
    assert list(rings.get_xdata()) == list(heads["head"][heads.hardmax_rank > heads.bound + heads.n**0.5]) == [2]
    plt.close(drawn[0])


def test_a_line_for_each_layer():
    common = {"n": 8, "m": 8, "head_dim": 4, "mask": "causal", "bound": 4.04}
    frame = pd.DataFrame([
        common | {"layer": layer, "head": head, "hardmax_rank": rank, "deviation": deviation}
        for layer, head, rank, deviation in (("b", 0, 3.0, 2e-9), ("b", 1, 5.04, 1e-8), ("a", 0, 1.0, 0.0))
    ])  # fmt: skip
    one, two = summary(frame).to_dict("records")
    assert one == {"layer": "b", "heads": 2, "n": 8, "m": 8, "head_dim": 4, "mask": "causal", "rank": 4.0, "least": 3.0,
                   "largest": 5.0, "bound": 4.0, "deviation": "1e-08"}  # fmt: skip
    assert two == one | {"layer": "a", "heads": 1, "rank": 1.0, "least": 1.0, "largest": 1.0, "deviation": "0e+00"}


def test_what_the_help_says_is_taken_unless_told_otherwise():
    options = _parser().parse_args(["gpt2", "--text", "text.txt"])
    assert (options.length, options.samples, options.tol, options.device.type) == (256, 8, 0.01, "cpu")
    assert (options.ranks, options.layers, options.random, options.revision, options.out) == (None,) * 5


def test_random_weights_of_the_same_architecture(text_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join("abcdefghijklmnop"), encoding="utf-8")
    tables = []
    for seed in ("1", "1", "2"):
        out = tmp_path / f"random{len(tables)}"
        assert main([str(text_model), "--text", str(text), "--random", seed, "--out", str(out)]) == 0
        tables.append(pd.read_csv(f"{out}.csv"))
    assert tables[0].equals(tables[1]) and not tables[0].equals(tables[2])


def test_files_are_named_by_the_model_and_the_seed_of_random_weights(text_model, tmp_path, monkeypatch, capsys):
    """The same model with random weights, measured beside it, has files of its own."""
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--random", "0"), ("--random", "-12")):
        assert main([str(text_model), "--text", str(text), *options]) == 0
    name = text_model.name
    names = [f"{name}-ranks", f"{name}-random0-ranks", f"{name}-random-12-ranks"]
    expected = {f"{each}{ending}" for each in names for ending in (".csv", ".png")}
    assert {path.name for path in tmp_path.iterdir()} == expected | {"text.txt"}
    printed = capsys.readouterr().out
    assert all(f"{each}.csv has a row for each head" in printed for each in names)


def test_images(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    config = tf.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    image_size=12,
                          patch_size=4)  # fmt: skip
    folder = tmp_path / "vit"
    tf.ViTModel(config).save_pretrained(folder)
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 12}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(3):
        image.effect_noise((30, 20), 50 * i + 20).save(pictures / f"{i}.png")
    out = tmp_path / "vit-ranks"
    assert (
        main([str(folder), "--images", str(pictures), "--out", str(out), "--samples", "2", "--ranks", "hardmax"]) == 0
    )
    table = pd.read_csv(f"{out}.csv")
    assert set(table["n"]) == {10} and set(table["mask"]) == {"none"} and table["stable_rank"].isna().all()
    assert "singular values" not in capsys.readouterr().out  # none was counted


def test_pickled_weights_are_refused(text_model, tmp_path, capsys):
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text((text_model / "config.json").read_text())
    torch.save(tf.BertModel.from_pretrained(text_model).state_dict(), folder / "pytorch_model.bin")
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    assert main([str(folder), "--text", str(text)]) == 1
    assert "safetensors" in capsys.readouterr().err


def changed(text_model, tmp_path, change):
    """A copy of the model whose weights ``change`` returns, and a text."""
    folder = tmp_path / "changed"
    shutil.copytree(text_model, folder)
    weights = change(safetensors.load_file(folder / "model.safetensors"))
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f", encoding="utf-8")
    return folder, text


def refused(folder, text, capsys, *options):
    """What the command says, in a line, of what it cannot measure."""
    capsys.readouterr()
    assert main([str(folder), "--text", str(text), "--out", str(folder / "out"), *options]) == 1
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert line.startswith("error: ") and not said.out and "Traceback" not in said.err
    return line


LACKING = {
    "keys": lambda weights: {name: x for name, x in weights.items() if "attention.self.key" not in name},
    "another name": lambda weights: {"foo." + name: x for name, x in weights.items()},
}


@pytest.mark.parametrize("how", LACKING)
def test_weights_that_are_missing_are_not_drawn(text_model, tmp_path, capsys, how):
    folder, text = changed(text_model, tmp_path, LACKING[how])
    line = refused(folder, text, capsys)
    assert "changed lacks weights: " in line and " more; --random SEED measures random ones" in line
    assert main([str(folder), "--text", str(text), "--out", str(tmp_path / "out"), "--random", "0"]) == 0


def test_a_pooler_may_be_missing(text_model, tmp_path, capsys):
    folder, text = changed(text_model, tmp_path, lambda w: {name: x for name, x in w.items() if "pooler" not in name})
    assert main([str(folder), "--text", str(text), "--out", str(tmp_path / "out")]) == 0


def test_weights_of_another_shape_are_refused(text_model, tmp_path, capsys):
    halved = lambda w: {name: x[:8].clone() if "attention.self.key" in name else x for name, x in w.items()}  # noqa: E731
    assert "changed cannot be loaded: " in refused(*changed(text_model, tmp_path, halved), capsys)


@pytest.mark.parametrize("how", ["cut", "pickled"])
def test_files_that_are_no_safetensors_are_refused(text_model, tmp_path, capsys, how):
    folder, text = changed(text_model, tmp_path, lambda weights: weights)
    file = folder / "model.safetensors"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    else:
        torch.save(tf.BertModel.from_pretrained(text_model).state_dict(), file)
    assert "changed cannot be loaded: " in refused(folder, text, capsys)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {"a": 3}}', None])
def test_an_index_that_names_pickled_weights_is_refused(text_model, tmp_path, capsys, monkeypatch, index, beside):
    folder, text = changed(text_model, tmp_path, lambda weights: weights)
    weights = safetensors.load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model-00001-of-00001.bin")
    if not beside:
        (folder / "model.safetensors").unlink()
    named = json.dumps({"weight_map": dict.fromkeys(weights, "pytorch_model-00001-of-00001.bin")})
    (folder / "model.safetensors.index.json").write_text(index or named)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    assert "changed cannot be loaded: model.safetensors.index.json " in refused(folder, text, capsys)


def test_weights_in_several_safetensors(text_model, tmp_path):
    folder, text = changed(text_model, tmp_path, lambda weights: weights)
    tf.BertModel.from_pretrained(text_model).save_pretrained(folder, max_shard_size="5KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert main([str(folder), "--text", str(text), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("device", ["meta", "xpu", "mps", "cuda:99"])
def test_devices_without_numbers_are_refused(text_model, tmp_path, capsys, device):
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    line = refused(text_model, text, capsys, "--device", device)
    assert f"--device {device}: torch sees no such device here" in line


def test_positions_that_start_behind_padding(text_model, tmp_path, capsys):
    """As in RoBERTa, whose tokenizer need not say how many tokens fit."""
    folder, text = tmp_path / "roberta", tmp_path / "text.txt"
    text.write_text(" ".join("abcdefghijklmnop" * 9), encoding="utf-8")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    tf.RobertaModel(tf.RobertaConfig(**sizes, vocab_size=30, max_position_embeddings=66)).save_pretrained(folder)
    tokenizer = tf.PreTrainedTokenizerFast.from_pretrained(text_model)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(folder)
    assert main([str(folder), "--text", str(text), "--out", str(tmp_path / "out")]) == 0
    assert set(pd.read_csv(tmp_path / "out.csv")["n"]) == {64}


def test_errors_are_said_in_a_line(text_model, tmp_path, capsys):
    assert main([str(tmp_path / "nothing"), "--text", str(tmp_path / "no.txt")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert main([str(text_model), "--images", str(tmp_path)]) == 1
    assert "holds no image" in capsys.readouterr().err
    text = tmp_path / "text.txt"
    text.write_text(" \n", encoding="utf-8")
    assert main([str(text_model), "--text", str(text)]) == 1
    assert "holds no text" in capsys.readouterr().err
    for options in ([], ["--text", str(text), "--length", "0"], ["--text", str(text), "--samples", "-1"]):
        with pytest.raises(SystemExit):
            main([str(text_model), *options])
    assert "'-1' is no whole number from 1 on" in capsys.readouterr().err


def test_what_a_model_cannot_read_is_said(text_model, tmp_path, capsys):
    folder = tmp_path / "bare"  # the model without its tokenizer
    tf.BertModel.from_pretrained(text_model).save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    assert main([str(folder), "--text", str(text)]) == 1
    assert "bare has no tokenizer that could be read" in capsys.readouterr().err
    config = tf.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    tf.GPT2Model(config).save_pretrained(tmp_path / "mute")  # for its kind an empty tokenizer finds no token at all
    assert main([str(tmp_path / "mute"), "--text", str(text)]) == 1
    assert "mute has no tokenizer that could be read" in capsys.readouterr().err
    pytest.importorskip("PIL.Image").new("RGB", (8, 8)).save(tmp_path / "picture.png")
    assert main([str(folder), "--images", str(tmp_path)]) == 1
    assert "bare has no preprocessor_config.json for images that could be read" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["transformers", "matplotlib"])
def test_packages_that_are_missing_are_named(text_model, tmp_path, capsys, monkeypatch, package):
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    monkeypatch.setitem(sys.modules, package, None)
    assert main([str(text_model), "--text", str(text)]) == 1
    error = capsys.readouterr().err
    assert package in error and "pip install 'attnrank[models]'" in error


def test_a_device_that_is_not_there_is_refused(text_model, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    assert main([str(text_model), "--text", str(text), "--device", "cuda"]) == 1
    assert "torch sees no such device here" in capsys.readouterr().err


def test_a_device_of_no_known_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nowhere", "--text", "x", "--device", "gpu"])
    assert "argument --device: 'gpu' is no device of torch" in capsys.readouterr().err


def test_code_that_comes_with_a_model_is_not_run(text_model, tmp_path, capsys):
    folder = tmp_path / "coded"
    shutil.copytree(text_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    assert main([str(folder), "--text", str(text)]) == 1
    assert "coded cannot be loaded" in capsys.readouterr().err and not (tmp_path / "ran").exists()
