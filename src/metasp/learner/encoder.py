"""Network inputs of raw examples: by a transform, or by a frozen encoder, whose features are
computed once per example and cached."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from metasp.errors import UserError
from metasp.methods.context import evaluating
from metasp.trees import Tree, call, each, kind, named_leaves, rows, size


class FrozenEncoder:
    """A module that makes features of inputs and never learns: ``ContinualLearner(head,
    encoder=backbone)`` makes one of a bare module.

    Features are computed in evaluation mode and without gradients, ``batch_size`` examples at once.
    Those of the task at hand, of its tests and of the memory are cached in working memory, under a
    digest of each example's content.
    """

    def __init__(self, module: nn.Module, batch_size: int = 64) -> None:
        if not isinstance(module, nn.Module):
            raise UserError(
                f"the encoder must be a torch.nn.Module, not a {type(module).__name__}."
            )
        if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
            raise UserError(
                "the encoder has lazy layers that do not know their size yet: run a batch through "
                "it first."
            )
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size of the encoder is {batch_size!r}: give 1 or more.")
        self.module, self.batch_size = module, batch_size
        self.weights = ""  # their digest, once the encoder stands before a model
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.transform: Callable[[Any], Any] = lambda raw: raw
        self._cached: dict[bytes, Tensor] = {}
        self.__qualname__ = type(module).__qualname__  # for a sentence where it is missing

    @classmethod
    def of(cls, encoder: "nn.Module | FrozenEncoder | None") -> "FrozenEncoder | None":
        """Return whatever a learner was given as its encoder as one."""
        if encoder is None or isinstance(encoder, FrozenEncoder):
            return encoder
        return cls(encoder)

    def place(
        self,
        model: nn.Module,
        transform: Callable[[Any], Any],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Stand before a model on its device and of its type; `transform` makes the encoder's
        inputs of raw ones."""
        if {*map(id, self.module.parameters())} & {*map(id, model.parameters())}:
            raise UserError(
                "the encoder and the model share parameters, so features would change while the "
                "model learns: give the model only what comes after the encoder."
            )
        self.module.to(device)
        self.device, self.dtype, self.transform = device, dtype, transform
        self.weights = weight_digest(self.module)
        self.clear()

    def check_unchanged(self) -> None:
        """Raise if somebody has trained the encoder meanwhile."""
        if weight_digest(self.module) != self.weights:
            raise UserError(
                "the encoder's weights have changed, so its cached features are no longer right: "
                "keep it frozen, or make a new learner around it."
            )

    def begin_task(self, needed: Iterable[Tree]) -> None:
        """Drop cached features but those of the raw inputs that are still `needed`."""
        self.check_unchanged()
        keys = {key for inputs in needed for key in digests(inputs)}
        self._cached = {k: row.clone() for k, row in self._cached.items() if k in keys}

    def clear(self) -> None:
        """Drop all cached features; what is needed again is computed again, to the same bits."""
        self._cached = {}

    def for_model(self, inputs: Tree, cache: bool = False) -> Tensor:
        """Compute features (n, …) as the model takes them."""
        return self(inputs, cache).to(self.device, self.dtype)

    @torch.no_grad()
    def __call__(self, inputs: Tree, cache: bool = False) -> Tensor:
        """Return features (n, …) of raw inputs on the CPU, from the cache where it has them. With
        `cache` those that it has not are added."""
        inputs = each(lambda leaf: leaf.cpu(), inputs)
        keys = digests(inputs)
        missing = {key: row for row, key in enumerate(keys) if key not in self._cached}
        features = {key: self._cached[key] for key in keys if key in self._cached}
        if missing:
            new = self._encode(rows(inputs, torch.tensor([*missing.values()])), padded=cache)
            features.update(zip(missing, new))
        if cache:
            self._cached.update(features)
        return torch.stack([features[key] for key in keys])

    def _encode(self, inputs: Tree, padded: bool) -> Tensor:
        """Compute features (n, …). A padded batch always has the same size: so an example's
        features are the same to the bit in whatever company it comes."""
        batches = []
        with evaluating(self.module):
            for start in range(0, size(inputs), self.batch_size):
                count = min(self.batch_size, size(inputs) - start)
                index = start + torch.arange(self.batch_size if padded else count) % count
                batches.append(self._outputs(rows(inputs, index), len(index))[:count].cpu())
        return torch.cat(batches)

    def _outputs(self, inputs: Tree, count: int) -> Tensor:
        """Return the module's features of some raw inputs, or raise one sentence on why they are of
        no use."""
        dtype = floats_of(self.module)
        try:
            ready = self.transform(each(lambda leaf: leaf.to(self.device), inputs))
            ready = each(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, ready)
            features = call(self.module, ready)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            reason = str(error).split("\n")[0][:120].rstrip(".")
            raise UserError(
                f"the encoder cannot take inputs that are {kind(inputs)} ({reason}): bring them to "
                "what it takes, for instance with transform=."
            ) from error
        if not isinstance(features, Tensor) or not features.is_floating_point():
            what = features.dtype if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"the encoder gives {what}: make it return one tensor of floats.")
        if features.shape[:1] != (count,) or not bool(features.isfinite().all()):
            raise UserError(
                f"the encoder gives features of shape {tuple(features.shape)} for {count} examples,"
                " or some that are not finite: return one row of finite numbers per example."
            )
        return features


class NetworkInputs:
    """Makes network inputs of raw examples: by the user's transform and augmentation, or with bytes
    as numbers from 0 to 1 and all else as it is."""

    def __init__(self, transform: Any, augment: Any, dtype: torch.dtype) -> None:
        self.transform, self.augment, self.dtype = transform, augment, dtype

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree:
        raw = each(self._numbers, raw) if self.transform is None else self.transform(raw)
        if self.augment is not None and generator is not None:
            raw = self.augment(raw, generator)
        return raw

    def _numbers(self, raw: Tensor) -> Tensor:
        if raw.dtype == torch.uint8:
            return raw.to(self.dtype) / 255
        # Floats may be what a memory of floats made of bytes.
        return raw.to(self.dtype) if raw.is_floating_point() else raw

    def undo(self, inputs: Tensor) -> Tensor:
        if self.transform is not None:
            raise UserError(
                "gmed edits the examples it stores and cannot undo your transform: transform the "
                "dataset beforehand, or use another method."
            )
        return inputs


class EncodedInputs:
    """Makes network inputs of raw examples by an encoder: their features."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        self.encoder = encoder

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree:
        return self.encoder.for_model(raw, cache=True)

    def undo(self, inputs: Tensor) -> Tensor:
        raise UserError(
            "gmed edits the examples it stores, and features cannot be turned back into inputs: "
            'pass keep="features", or use another method.'
        )


def digests(inputs: Tree) -> list[bytes]:
    """Return one digest per example: SHA-256 of the names, types and shapes of its tensors and of
    their bytes."""
    named = dict(sorted(named_leaves(inputs).items()))
    leaves = [leaf.detach().cpu().contiguous() for leaf in named.values()]
    kinds = [f"{name} {leaf.dtype} {tuple(leaf.shape[1:])}" for name, leaf in zip(named, leaves)]
    begun = hashlib.sha256("\n".join(kinds).encode())
    flat = [leaf.reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    keys = []
    for columns in zip(*flat, strict=True):
        one = begun.copy()
        for column in columns:
            one.update(column)
        keys.append(one.digest())
    return keys


def weight_digest(module: nn.Module) -> str:
    """Return the SHA-256 of all parameters and buffers, with their names, types and shapes."""
    total = hashlib.sha256()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def floats_of(module: nn.Module) -> torch.dtype:
    """Return the type of a module's floating-point weights; it may have none."""
    every = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(every, torch.get_default_dtype())
