"""Network inputs of raw examples: by a transform, or by a frozen encoder, whose features are
computed once per example."""

import hashlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from metasp.errors import UserError
from metasp.methods.context import evaluating
from metasp.trees import Tree, call, each, kind, rows, size


class FrozenEncoder:
    """A module that makes features of inputs and never learns: ``ContinualLearner(head,
    encoder=backbone)`` makes one of a bare module. Features are computed in evaluation mode and
    without gradients, ``batch_size`` examples at once."""

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
        self.module, self.batch_size = module, batch_size
        self.weights = ""  # their digest, once the encoder stands before a model
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.transform: Callable[[Any], Any] = lambda raw: raw
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

    def check_unchanged(self) -> None:
        """Raise if somebody has trained the encoder since features of it were stored."""
        if weight_digest(self.module) != self.weights:
            raise UserError(
                "the encoder's weights have changed, so the stored features are no longer right: "
                "keep it frozen, or make a new learner around it."
            )

    @torch.no_grad()
    def __call__(self, inputs: Tree) -> Tensor:
        """Return features (n, …) of raw inputs on the CPU. A batch always has the same size, so an
        example's features are the same to the bit in whatever company it comes."""
        batches = []
        with evaluating(self.module):
            for start in range(0, size(inputs), self.batch_size):
                count = min(self.batch_size, size(inputs) - start)
                index = start + torch.arange(self.batch_size) % count
                batches.append(self._features(rows(inputs, index))[:count].to(self.dtype).cpu())
        return torch.cat(batches)

    def _features(self, inputs: Tree) -> Tensor:
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
        floats = isinstance(features, Tensor) and features.is_floating_point()
        if not floats or len(features) != size(inputs) or not bool(features.isfinite().all()):
            what = kind(features) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(
                f"the encoder gives {what} for {size(inputs)} examples, or numbers that are not "
                "finite: make it return one row of finite floats per example."
            )
        return cast(Tensor, features)


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
                "gmed edits the examples it stores and cannot undo a transform: transform the "
                'dataset beforehand, keep="features" of an encoder, or use another method.'
            )
        return inputs


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
