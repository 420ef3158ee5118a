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
from metasp.store.files import remove_stale, write_atomic
from metasp.types import State

FORMAT = 4
TEMPORARY = ".metasp-tmp"  # ends the name of a file that is being written


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Return the content of a file."""
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    return pack_tensors(copies, {"metasp": text, "checksum": digest(copies, text)})


def write(path: Path, content: bytes) -> None:
    """Replace the file in one step."""
    remedy = "make room or choose another path. What was stored before is intact."
    with or_user_error(f"cannot write {path}", remedy):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content, suffix=TEMPORARY)
        remove_stale(path.parent, TEMPORARY)


def read(path: Path) -> bytes:
    with or_user_error(f"cannot read {path}"):
        return path.read_bytes()


def parse(content: bytes, path: Path) -> tuple[State, dict[str, Any]]:
    """Return what `pack` was given, or raise one sentence about why it cannot be used."""
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
    """Return the SHA-256 of the text and of every tensor's name, type, shape and bytes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        readable = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        total.update(readable.numpy().tobytes())
    return total.hexdigest()


def check_code(path: Path, about: Mapping[str, Any], code: Mapping[str, object]) -> None:
    """Raise unless all is given that a learner was saved with and that is no plain value."""
    for name, what in about["code"].items():
        if code.get(name) is None:
            raise UserError(
                f"{path} was saved with its own {name} ({what}), and code is never stored: pass "
                f"{name}= again."
            )


def check_model(path: Path, stored: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise unless the model's tensors have the names, types and shapes of the stored ones."""
    ours, theirs = (
        {name: f"{t.dtype} of shape {tuple(t.shape)}" for name, t in state.items()}
        for state in (model.state_dict(), stored)
    )
    for name in sorted({*ours, *theirs}):
        if name not in ours:
            reason = f"the file holds {name!r}, which this model has not"
        elif name not in theirs:
            reason = f"this model has {name!r}, which the file does not hold"
        elif theirs[name] != ours[name]:
            reason = f"{name!r} is {theirs[name]} in the file and {ours[name]} here"
        else:
            continue
        raise UserError(f"{path} was saved from a different model: {reason}; build that model.")


def unsaved_buffers(model: nn.Module) -> State:
    """Return copies of the buffers that a model keeps besides its state, which nobody else would
    bring back; but for kinds that a file cannot hold."""
    saved = model.state_dict().keys()
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
    storable = {
        n: b for n, b in unsaved.items() if b.layout == torch.strided and not b.is_complex()
    }
    return {name: buffer.detach().clone() for name, buffer in storable.items()}


def put_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Bring buffers back; one may be made anew in another size by each forward pass."""
    current = dict(model.named_buffers())
    for name, buffer in buffers.items():
        if name not in current:
            raise UserError(
                f"the model lacks the buffer {name} of the saved one: give a model of that kind."
            )
        if current[name].shape == buffer.shape:
            current[name].copy_(buffer)
        else:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, buffer.to(current[name].device).clone())
