"""A frozen encoder in front of what learns: features are computed once per example and kept."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from metasp.errors import UserError
from metasp.folders import cache_folder
from metasp.learner.data import Arrivals, Inputs
from metasp.learner.features import KEY, LARGEST_FILE, FeatureCache
from metasp.methods.context import Transform, evaluating
from metasp.trees import Tree, call, each, kind, named_leaves, rows, size
from metasp.types import State

if TYPE_CHECKING:
    from metasp.learner.settings import Parts

TOLERANCE = 1e-3  # of features in an old file, relative: other machines round otherwise
PROBES = 2  # rows of an old file that are computed again before it serves

Keep = Callable[[list[bytes], Tensor], None]
"""Takes rows of features under the digests of what they are of."""


class FrozenEncoder:
    """A module that makes features of inputs and never learns: ``ContinualLearner(head,
    encoder=backbone)`` makes one of a bare module.

    Features are computed in evaluation mode and without gradients, once per example, and kept in
    files below ``cache`` (default: the user's cache folder) under a digest of the encoder's
    weights and of the example's content. The files take at most ``gigabytes``, of which the
    longest unused are deleted first; 0 keeps features in working memory alone. ``batch_size``
    examples go through the encoder at once.
    """

    def __init__(
        self,
        module: nn.Module,
        cache: str | Path | None = None,
        gigabytes: float = 4.0,
        batch_size: int = 64,
    ) -> None:
        check_module(module)
        if not isinstance(batch_size, int) or not gigabytes >= 0 or batch_size < 1:
            raise UserError(
                "the cache of features needs gigabytes of 0 or more and a batch_size of 1 or more."
            )
        self.module, self.batch_size = module, batch_size
        folder = Path(cache) if cache is not None else cache_folder() / "features"
        self.cache = FeatureCache(folder, int(gigabytes * 2**30))
        self.weights = ""  # their digest, once it is known
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.__qualname__ = type(module).__qualname__  # for a sentence where it is missing
        self.transform: Callable[[Any], Any] = lambda raw: raw

    @classmethod
    def of(cls, encoder: "nn.Module | FrozenEncoder | None") -> "FrozenEncoder | None":
        """Whatever a learner was given as its encoder."""
        if encoder is None or isinstance(encoder, FrozenEncoder):
            return encoder
        return cls(encoder)

    def __call__(self, inputs: Tree) -> Tensor:
        """Features of inputs on the CPU, from the cache where it has them; nothing is kept."""
        return self._features(inputs, None, padded=False)

    def for_model(self, inputs: Tree) -> Tensor:
        """The same as the model takes them."""
        return self(inputs).to(self.device, self.dtype)

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
        about = f"{self.weights} {type(self.module).__qualname__} {self.module!r}"
        text = re.sub(r" at 0x[0-9a-f]+", "", about)
        self.cache.open(hashlib.sha256(text.encode()).hexdigest()[:24])

    def check_unchanged(self) -> None:
        """Raise if somebody has trained the encoder meanwhile."""
        if weight_digest(self.module) != self.weights:
            raise UserError(
                "the encoder's weights have changed, so its stored features are no longer right: "
                "keep it frozen, or make a new learner around it."
            )

    def begin(self, needed: Sequence[Tree]) -> None:
        """A task begins; of what came before these raw inputs are still needed."""
        self.check_unchanged()
        self.cache.begin(key for inputs in needed for key in digests(inputs))

    def store(self, inputs: Tree) -> None:
        """Have the features of inputs in the cache."""
        inputs = each(lambda leaf: leaf.cpu(), inputs)
        self._complete(inputs, digests(inputs), self.cache.add, padded=True)

    def stored(self, inputs: Tree) -> Tensor:
        """Features of inputs, which stay in the cache for later."""
        return self._features(inputs, self.cache.add, padded=True)

    def held(self, inputs: Tree) -> Tensor:
        """The same for a batch of a training: what is not known is kept in working memory."""
        return self._features(inputs, self.cache.hold, padded=True)

    def state(self, inputs: Tree) -> State:
        """What must survive of the features of raw inputs, even without the cache."""
        keys = torch.frombuffer(bytearray(b"".join(digests(inputs))), dtype=torch.uint8)
        return {"keys": keys.view(-1, KEY), "features": self.held(inputs).clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Know what `state` knew."""
        if state:
            self.cache.hold([row.numpy().tobytes() for row in state["keys"]], state["features"])

    def _features(self, inputs: Tree, keep: Keep | None, padded: bool) -> Tensor:
        inputs = each(lambda leaf: leaf.cpu(), inputs)
        keys = digests(inputs)
        fresh = self._complete(inputs, keys, keep, padded)
        found = [fresh[key] if key in fresh else self.cache.find(key) for key in keys]
        return torch.stack([row for row in found if row is not None])

    def _complete(
        self, inputs: Tree, keys: Sequence[bytes], keep: Keep | None, padded: bool
    ) -> dict[bytes, Tensor]:
        """Compute what the cache does not know, in portions of a file's size, and keep it. Gives
        what may not be found there afterwards."""
        self._probe(inputs, keys)
        first = {key: index for index, key in reversed([*enumerate(keys)])}
        missing = sorted(index for key, index in first.items() if self.cache.find(key) is None)
        fresh: dict[bytes, Tensor] = {}
        portion: list[Tensor] = []
        names: list[bytes] = []
        for now in torch.split(torch.tensor(missing, dtype=torch.long), self.batch_size):
            if not len(now):
                break
            portion.append(self._encoded(rows(inputs, now), padded))
            names += [keys[index] for index in now.tolist()]
            if sum(part.nbytes for part in portion) < LARGEST_FILE and now[-1] != missing[-1]:
                continue
            values = torch.cat(portion)
            if keep is not None:
                keep(names, values)
            if keep != self.cache.add:
                fresh.update(zip(names, values))
            portion, names = [], []
        return fresh

    def _probe(self, inputs: Tree, keys: Sequence[bytes]) -> None:
        """Before an old file serves: are its features what encoder and transform make today? Their
        weights are part of its name, their code is not."""
        for segment, places in self.cache.unchecked(keys).items():
            few = places[:PROBES]
            now = self._encoded(rows(inputs, torch.tensor(few)), padded=True)
            then = [self.cache.find(keys[index]) for index in few]
            if all(row is not None and alike(row, new) for row, new in zip(then, now)):
                self.cache.trust(segment)
            else:
                self.cache.discard(segment)

    @torch.no_grad()
    def _encoded(self, inputs: Tree, padded: bool) -> Tensor:
        """Features by the encoder itself. A padded batch always has the same size: so an example's
        features are the same to the bit in whatever company it comes."""
        count = size(inputs)
        parts = []
        with evaluating(self.module):
            for start in range(0, count, self.batch_size):
                own = min(self.batch_size, count - start)
                index = start + torch.arange(self.batch_size if padded else own) % own
                parts.append(self._outputs(rows(inputs, index), len(index))[:own].cpu())
        return torch.cat(parts)

    def _outputs(self, part: Tree, count: int) -> Tensor:
        """What the module says to some raw inputs, or one sentence on why it is of no use."""
        try:
            ready = each(lambda leaf: leaf.to(self.device), part)
            features = call(self.module, floats_in(own_dtype(self.module), self.transform(ready)))
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            reason = str(error).split("\n")[0][:120].rstrip(".")
            raise UserError(
                f"the encoder cannot take inputs that are {kind(part)} ({reason}): bring them to "
                "what it takes, for instance with transform=."
            ) from error
        if not isinstance(features, Tensor) or not features.is_floating_point():
            what = features.dtype if isinstance(features, Tensor) else type(features).__name__
            raise UserError(
                f"the encoder gives {what}: wrap it so that it returns one tensor of floats, the "
                "features of each example."
            )
        if not features.dim() or len(features) != count:
            raise UserError(
                f"the encoder gives features of shape {tuple(features.shape)} for {count} "
                "examples: return one row per example."
            )
        if not bool(features.isfinite().all()):
            raise UserError(
                "the encoder gives features that are not finite: correct the inputs or the encoder."
            )
        return features


class EncodedInputs:
    """Raw examples to network inputs by an encoder: their features."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        self.encoder = encoder

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree:
        return self.encoder.held(raw).to(self.encoder.device, self.encoder.dtype)

    def undo(self, inputs: Tensor) -> Tensor:
        raise UserError(
            "gmed edits the examples it stores, and features cannot be turned back into inputs: "
            'pass keep="features", or use another method.'
        )


def inputs_for(model: nn.Module, parts: "Parts", keep: str, device: torch.device) -> Transform:
    """What makes the model's inputs of what the memory holds."""
    encoder = parts.encoder
    dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
    if encoder is None:
        if keep != "inputs":
            raise UserError('keep="features" needs an encoder: give encoder=, or leave keep out.')
        return Inputs(parts.transform, parts.augment, dtype)
    if parts.augment is not None:
        raise UserError(
            "augment changes inputs anew in each epoch, and an encoder's features are computed "
            "once: leave augment out, or let the model hold the encoder with its gradients off."
        )
    raw = Inputs(parts.transform, None, own_dtype(encoder.module))
    encoder.place(model, raw, device, dtype)
    return Inputs(None, None, dtype) if keep == "features" else EncodedInputs(encoder)


def entered(encoder: FrozenEncoder | None, keep: str, found: Arrivals) -> Arrivals:
    """What a learner goes on with of examples that come in, their features computed."""
    if encoder is None:
        return found
    if keep == "features":
        return found._replace(inputs=encoder.stored(found.inputs))
    encoder.store(found.inputs)
    return found


def check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise UserError(f"the encoder must be a torch.nn.Module, not a {type(module).__name__}.")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise UserError(
            "the encoder has lazy layers that do not know their size yet: run a batch through it "
            "first."
        )


def digests(inputs: Tree) -> list[bytes]:
    """One digest per example: SHA-256 of what kind of tensors it is made of and of their bytes."""
    named = dict(sorted(named_leaves(inputs).items()))
    leaves = [leaf.detach().cpu().contiguous() for leaf in named.values()]
    kinds = [f"{name} {leaf.dtype} {tuple(leaf.shape[1:])}" for name, leaf in zip(named, leaves)]
    begun = hashlib.sha256("\n".join(kinds).encode())
    flat = [leaf.reshape(len(leaf), -1).view(torch.uint8).numpy() for leaf in leaves]
    found = []
    for columns in zip(*flat, strict=True):
        one = begun.copy()
        for column in columns:
            one.update(column)
        found.append(one.digest())
    return found


def weight_digest(module: nn.Module) -> str:
    """SHA-256 of all parameters and buffers, with their names, types and shapes."""
    total = hashlib.sha256()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def alike(before: Tensor, now: Tensor) -> bool:
    """Whether two rows of features differ by no more than rounding."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    size = float(now.double().norm())
    return float((before.double() - now.double()).norm()) <= TOLERANCE * max(size, 1e-6)


def own_dtype(module: nn.Module) -> torch.dtype:
    """The type of the encoder's weights; it may have none."""
    every = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(every, torch.get_default_dtype())


def floats_in(dtype: torch.dtype, inputs: Tree) -> Tree:
    """The same with every float in that type."""
    return each(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)
