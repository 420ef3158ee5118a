"""One file for a learner: tensors in safetensors, all else as JSON in its header, both under one
checksum. Nothing in it is ever executed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor, nn

from metasp.errors import UserError, or_user_error
from metasp.store.files import write_atomic

FORMAT = 2  # 1 kept every label, and the momentum of trainable parameters by their place


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Replace the file in one step."""
    held = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    remedy = "make room or choose another place. What was stored before is intact."
    with or_user_error(f"cannot write {path}", remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"metasp": text, "checksum": digest(held, text)}
        write_atomic(path, pack_tensors(held, metadata))


def content_of(path: Path) -> bytes:
    with or_user_error(f"cannot read {path}"):
        return path.read_bytes()


def read(path: Path, content: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` was given, or one sentence about why it cannot be used; `content` is that of the
    file where somebody has read it."""
    content = content_of(path) if content is None else content
    try:
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        about: dict[str, Any] = json.loads(metadata["metasp"])
        version = about["format"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a saved learner, or its beginning was cut or altered: restore it from "
            "a backup."
        ) from error
    if version != FORMAT:
        raise UserError(
            f"{path} has format {version} and this metasp reads {FORMAT}: it was saved by metasp "
            f"{about.get('version', 'of another version')}; use that one."
        )
    try:
        tensors = parse_tensors(content)
        sound = digest(tensors, metadata["metasp"]) == metadata["checksum"]
    except (SafetensorError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"{path} is damaged (cut short or altered): restore it from a backup.")
    return tensors, about


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of the text and of every tensor's name, type, shape and bytes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        readable = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        total.update(readable.numpy().tobytes())
    return total.hexdigest()


def shapes_of(model: nn.Module) -> dict[str, list[Any]]:
    """What must agree between a file and a model: names, shapes and types of its tensors."""
    return {
        name: [*tensor.shape, str(tensor.dtype).removeprefix("torch.")]
        for name, tensor in model.state_dict().items()
    }


def check_model(path: Path, saved: Mapping[str, list[Any]], model: nn.Module) -> None:
    """Raise unless the model is of the kind that was saved."""
    here = shapes_of(model)
    for name in sorted({*saved, *here}):
        if name not in here:
            reason = f"the file holds {name!r}, which this model has not"
        elif name not in saved:
            reason = f"this model has {name!r}, which the file does not hold"
        elif list(saved[name]) != here[name]:
            reason = f"{name!r} is {words(saved[name])} in the file and {words(here[name])} here"
        else:
            continue
        raise UserError(f"{path} was saved from a different model: {reason}; build that model.")


def words(shape: list[Any]) -> str:
    return f"{shape[-1]} of shape {tuple(shape[:-1])}"
