"""Models of the Hugging Face hub, or of a folder, and what they are to read: safetensors only, no code of others."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnrank._optional import require

#: Settings of configurations that hold the number of key heads.
KEY_HEADS = ("num_key_value_heads", "num_kv_heads")

#: Where models in several files say which weights are in which.
INDEX = "model.safetensors.index.json"

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def load(name: str, *, revision: str | None = None, seed: int | None = None, local: bool = False) -> nn.Module:
    """The model without a task's head, in its own precision; with ``seed`` the same architecture with random weights.

    With ``local`` the network is not asked.

    Raises
    ------
    ValueError : transformers is not installed, or the model is not there, not in safetensors, lacks weights other than
        a pooler's, or needs code of its own.
    """
    tf = _transformers()
    from safetensors import SafetensorError

    try:
        options = {"revision": revision, "trust_remote_code": False, "local_files_only": local}
        config = tf.AutoConfig.from_pretrained(name, **options)
        if seed is not None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)  # not those of other devices
                return _from(lambda how: tf.AutoModel.from_config(config, trust_remote_code=False, **how))
        _check_index(name, revision, local)
        options |= {"use_safetensors": True, "output_loading_info": True}
        model, found = _from(lambda how: tf.AutoModel.from_pretrained(name, **options, **how))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{name} cannot be loaded: {error}") from error
    lacking = sorted(key for key in found["missing_keys"] if "pooler" not in key)
    if lacking:  # transformers has drawn them at random
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise ValueError(f"{name} lacks weights: {lacking[0]}{more}; --random SEED measures random ones")
    return model


def _check_index(name: str, revision: str | None, local: bool) -> None:
    """Raise ValueError where the index of a model in several files names others than safetensors.

    transformers would read pickled weights that such an index names, though it is told not to.
    """
    from transformers.utils import cached_file

    file = cached_file(
        name, INDEX, revision=revision, local_files_only=local, _raise_exceptions_for_missing_entries=False
    )
    if file is None:
        return
    try:
        files = set(json.loads(Path(file).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{INDEX} cannot be read: {error}") from error
    others = [name for name in files if not str(name).endswith(".safetensors")]
    if others:
        raise ValueError(f"{INDEX} names {others[0]}, which is no file of safetensors")


def _from(build: Callable[[dict], Any]) -> Any:
    """What ``build`` makes with ``scaled_dot_product_attention``, or written out where the model has only that."""
    try:
        return build({"attn_implementation": "sdpa"})
    except ValueError as error:
        if "attn_implementation" not in str(error) and "scaled_dot_product_attention" not in str(error):
            raise
        return build({"attn_implementation": "eager"})


def text_batches(
    name: str,
    model: nn.Module,
    file: Path,
    *,
    length: int,
    samples: int,
    revision: str | None = None,
    local: bool = False,
) -> list[dict]:
    """The first ``samples`` stretches of ``length`` tokens of a text, a batch each; one shorter stretch where it is
    short."""
    tokenizer = _reader("AutoTokenizer", name, revision, local)
    text = file.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{file} holds no text")
    length = min(x for x in (length, _longest(model), tokenizer.model_max_length) if x)
    parts = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    if parts and not isinstance(parts[0], list):  # a tokenizer that does not say what it has cut off
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        parts = [ids[start : start + length] for start in range(0, len(ids), length)]
    whole = [part for part in parts if len(part) == length][:samples] or parts[:1]
    if {i for part in whole for i in part} <= set(tokenizer.all_special_ids):  # as an empty one, made for want of files
        raise ValueError(f"{name} has no tokenizer that could be read: it knows no token of {file}")
    batches = [{"input_ids": torch.tensor([part], device="cpu")} for part in whole]
    if getattr(model.config, "is_encoder_decoder", False):
        batches = [batch | {"decoder_input_ids": batch["input_ids"]} for batch in batches]
    return batches


def _longest(model: nn.Module) -> int | None:
    """How many tokens have positions; behind that of padding where there is one, as in RoBERTa."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1
    return getattr(model.config, "max_position_embeddings", None)


def image_batches(
    name: str, folder: Path, *, samples: int, revision: str | None = None, local: bool = False
) -> list[dict]:
    """The first ``samples`` images of a folder by name, prepared as the model's own settings say, a batch each."""
    Image = require("PIL.Image", "models")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES)[:samples]
    if not files:
        raise ValueError(f"{folder} holds no image ({', '.join(IMAGES)})")
    processor = _reader("AutoImageProcessor", name, revision, local)
    batches = []
    for path in files:
        with Image.open(path) as image:
            pixels = processor(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]
        batches.append({"pixel_values": pixels})
    return batches


def _reader(kind: str, name: str, revision: str | None, local: bool) -> Any:
    """What turns texts or images into the input of a model."""
    try:
        return getattr(_transformers(), kind).from_pretrained(
            name, revision=revision, trust_remote_code=False, local_files_only=local
        )
    except (OSError, ValueError, KeyError) as error:
        what = {"AutoTokenizer": "tokenizer", "AutoImageProcessor": "preprocessor_config.json for images"}[kind]
        raise ValueError(f"{name} has no {what} that could be read: {str(error).strip().splitlines()[0]}") from error


def builder(config: Any) -> Callable[[int, torch.Generator], nn.Module]:
    """``build(head_dim, generator)`` for a configuration of transformers, as ``recommend_head_dim`` wants it.

    Where the configuration has a head dimension of its own (``head_dim``, or ``d_kv`` of T5), that alone changes; else
    width and parameters stay and the number of heads, in the decoder too, is width / head_dim.
    """
    if not hasattr(config, "model_type"):
        raise ValueError(f"build must be a function or a configuration of transformers, got {type(config).__name__}")
    tf = _transformers()

    def build(head_dim: int, generator: torch.Generator) -> nn.Module:
        changed = copy.deepcopy(config)
        own = next((name for name in ("head_dim", "d_kv") if _is_own(config, name)), None)
        if own is not None:
            setattr(changed, own, head_dim)
        else:
            _set_heads(changed, head_dim)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.initial_seed())
            return _from(lambda how: tf.AutoModel.from_config(changed, trust_remote_code=False, **how)).eval()

    return build


def _is_own(config: Any, name: str) -> bool:
    """Is this a setting, and not computed from others as Falcon's head_dim is?"""
    return getattr(config, name, None) is not None and not isinstance(getattr(type(config), name, None), property)


def _set_heads(config: Any, head_dim: int) -> None:
    """The number of heads that have this head dimension at the width of a configuration."""
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if width is None or heads is None:
        raise ValueError("build must be a function for a configuration without a width and a number of heads")
    if width % head_dim:
        raise ValueError(f"head_dims must divide the width {width} of this configuration, got {head_dim}")
    if any(getattr(config, name, None) not in (None, heads) for name in KEY_HEADS):
        raise ValueError("build must be a function for grouped queries without a head_dim of their own")
    for name in ("num_attention_heads", "decoder_attention_heads", *KEY_HEADS):
        if getattr(config, name, None) is not None:
            setattr(config, name, width // head_dim)


def reachable() -> bool:
    """Whether the hub has an address here: without a network its client would try again for half a minute."""
    try:
        return bool(socket.getaddrinfo("huggingface.co", 443))
    except OSError:
        return False


def part_for(model: nn.Module, kind: str) -> nn.Module:
    """The text or the vision part of a model that has both, else the model."""
    return getattr(model, f"{kind}_model", None) or model


def _transformers():
    try:
        import transformers
    except ImportError:
        raise ValueError("models of the hub need transformers: pip install 'attnrank[models]'") from None
    return transformers
