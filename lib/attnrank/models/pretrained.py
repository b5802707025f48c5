"""Small Transformers that others trained: found in a local folder, checked, and built without their authors' code.

The files are not part of this package. Their folder is named by the environment variable ATTNRANK_MODELS, or is
``models`` in the folder that ATTNRANK_DATA names; every file must have the checksum given here.

stories260K : Karpathy's llama2.c (MIT), a causal language model on TinyStories; loaded by transformers.
route_tsp20, route_tsp50, route_tsp100 : Kool, van Hoof and Welling 2019 (MIT), encoders of travelling salesman
    problems.
kwt1 : Berg, O'Connor and Tairum Cruz 2021 (Apache-2.0), the Keyword Transformer of Arm, with four recordings of one
    second from Speech Commands (CC BY 4.0).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from attnrank import _check
from attnrank.models.keywords import KeywordTransformer
from attnrank.models.route import RouteEncoder

#: SHA-256 of every file, by model.
FILES = {
    "stories260K": {
        "config.json": "77dd74832615cc4899097beb84192c87c020d6f4cc5ed9e03bbdc96d467b5fbf",
        "model.safetensors": "407a7c581bdd66972383ce9ad24857713fb98786d06ea564a2fe9b34ebe77dfd",
        "tokenizer.json": "d9bbb431a9cdb30aa643ed6afb4fc7e5c747a009b973e1cad334478358c0089a",
        "tokenizer_config.json": "e9838135dba42ddf04aaf3f71b73c4b54112b69b52079549c7d342942215ac0b",
    },
    "route_tsp20": {"model.safetensors": "7fc62015de2381dbe958acb485f0de71c45fb5d2739ee8dc60420aae2ba88e7e"},
    "route_tsp50": {"model.safetensors": "e09d884f2a28a8f1d4e989ab8d4a26194aefbd9f61a5ee73313604174fc0bb4d"},
    "route_tsp100": {"model.safetensors": "67674148aa76baf0bf875ba65064792476c5f1fdffa6bba6ba05662a4866e7f8"},
    "kwt1": {
        "model.safetensors": "002080b4dfb4ef785c4d5485b2ef0c9682af4cb61a86fef871c479bba7705042",
        "clips/yes.wav": "b40e137a9d25bbdf135e03fa0f6bff4696d0bfc203aef8bc73b27c9428ba5a92",
        "clips/no.wav": "21e2b640385e4a751d480a87ae5a1633a6ff00e838b0e2ad48b22f8034e946d8",
        "clips/noise.wav": "7f9cbb350f20ea8aafcd43a9386d8490241f9da64da6d3ad624e2aa36fe2029c",
        "clips/silence.wav": "b2149db40d58f46ac63a510bd293bb7a9bf9e379429a79e7c5e3a8d66d55e7f0",
    },
}
CLIPS = ("yes", "no", "noise", "silence")


def at_hand(name: str) -> bool:
    """Whether the files of a model are here; that they are the right ones is checked when they are read."""
    folder = _root()
    return name in FILES and folder is not None and all((folder / name / file).is_file() for file in FILES[name])


def files(name: str) -> Path:
    """The folder of a model, its files checked.

    Raises
    ------
    ValueError : an unknown name; no folder; a file that is missing, or is another than the one that this book measured.
    """
    _check.choice("name", name, FILES)
    root = _root()
    if root is None:
        raise ValueError(
            "no folder of trained models: name it by ATTNRANK_MODELS, or put models into that of ATTNRANK_DATA"
        )
    return _checked(root / name, name)


@cache
def _checked(folder: Path, name: str) -> Path:
    """The folder, once its files have been found to be those of the model."""
    for file, expected in FILES[name].items():
        path = folder / file
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise ValueError(
                f"{path} is another file than the one measured here: its SHA-256 is {found}, not {expected}"
            )
    return folder


def load(name: str, *, seed: int | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A trained model in evaluation mode, or with ``seed`` the same architecture with random weights.

    Random weights are drawn as the model's authors draw them. They need no file, except those of stories260K. In
    ``dtype`` float64, which they then have, every processor draws them alike but for 1e-16; in float32 but for 6e-8,
    by which keys that are nearly best can change places. Trained weights are in float32.

    Raises
    ------
    ValueError : as :func:`files`; another dtype, or float64 without a seed; transformers or safetensors not installed.
    """
    _check.choice("name", name, FILES)
    seed = seed if seed is None else _check.integer("seed", seed, minimum=0)
    if dtype not in ((torch.float32,) if seed is None else (torch.float32, torch.float64)):
        raise ValueError(f"dtype must be float32, or of random weights float64, got {dtype}")
    with torch.device("cpu"), torch.random.fork_rng(devices=[]), _default(dtype):
        torch.default_generator.manual_seed(seed or 0)  # torch.manual_seed seeds every device
        if name == "stories260K":
            return _stories(seed, dtype).requires_grad_(False).eval()
        model = KeywordTransformer() if name == "kwt1" else RouteEncoder()
    if seed is None:
        model.load_state_dict(_tensors(files(name) / "model.safetensors"), strict=True)
    return model.requires_grad_(False).eval()


def clip(name: str) -> Tensor:
    """One of the four recordings, one second at 16 kHz: float32 (16000) between -1 and 1."""
    import wave

    _check.choice("name", name, CLIPS)
    with wave.open(str(files("kwt1") / f"clips/{name}.wav"), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, 16000):
            raise ValueError(f"the clip {name} is not 16 bit mono at 16 kHz")
        samples = torch.frombuffer(bytearray(file.readframes(16000)), dtype=torch.int16)
    return torch.nn.functional.pad(samples.float() / 2**15, (0, 16000 - len(samples)))


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _stories(seed: int | None, dtype: torch.dtype) -> nn.Module:
    tf, folder = _transformers(), files("stories260K")
    if seed is None:
        return tf.AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, attn_implementation="sdpa")
    config = tf.AutoConfig.from_pretrained(folder)
    return tf.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise ValueError("trained models need safetensors: pip install 'attnrank[models]'") from None
    return load_file(path)


def _transformers():
    try:
        import transformers
    except ImportError:
        raise ValueError("stories260K needs transformers: pip install 'attnrank[models]'") from None
    return transformers


def _root() -> Path | None:
    if os.environ.get("ATTNRANK_MODELS"):
        return Path(os.environ["ATTNRANK_MODELS"])
    return Path(os.environ["ATTNRANK_DATA"]) / "models" if os.environ.get("ATTNRANK_DATA") else None
