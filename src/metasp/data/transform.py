"""Raw examples to network inputs: normalisation and augmentation as batched tensor code."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from metasp import trees
from metasp.trees import Tree


@dataclass(frozen=True)
class Transform:
    """Scale bytes to [0, 1], crop and flip where asked, then normalise by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int = 0
    flip: bool = False

    def __call__(self, raw: Tree, generator: torch.Generator | None = None) -> Tree:
        """Shape kept, float32. Augments only when given a generator. Of several tensors bytes
        alone are changed: to numbers from 0 to 1."""
        if not isinstance(raw, Tensor):
            return trees.each(trees.as_floats, raw)
        if generator is not None and raw.dim() == 4:
            if self.crop_padding:
                raw = random_crop(raw, self.crop_padding, generator)
            if self.flip:
                raw = random_flip(raw, generator)
        scale = 255.0 if raw.dtype == torch.uint8 else 1.0
        mean, std = self._by_channel(raw)
        return (raw.float() - mean * scale) / (std * scale)

    def undo(self, inputs: Tensor) -> Tensor:
        """The raw floats of which these are the network inputs; shape kept."""
        mean, std = self._by_channel(inputs)
        return inputs * std + mean

    def _by_channel(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation in a shape that goes with inputs (n, channels, …)."""
        shape = (1, -1, *(1,) * (like.dim() - 2)) if like.dim() > 1 else (-1,)
        mean, std = (torch.tensor(v, device=like.device) for v in (self.mean, self.std))
        return mean.view(shape), std.view(shape)


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Shift each image (n, c, h, w) by up to `padding` pixels, zeros coming in at the edge."""
    n, _, height, width = images.shape
    corner = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator).to(images.device)
    padded = F.pad(images, (padding,) * 4)
    rows = corner[0] + torch.arange(height, device=images.device)
    columns = corner[1] + torch.arange(width, device=images.device)
    number = torch.arange(n, device=images.device)[:, None, None]
    # Indices on both sides of the channel axis put it last: move it back.
    return padded[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    chosen = torch.rand(len(images), generator=generator) < 0.5
    mirrored = images.flip(-1)
    return torch.where(chosen.to(images.device)[:, None, None, None], mirrored, images)
