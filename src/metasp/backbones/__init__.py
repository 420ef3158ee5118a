"""The networks by name. BACKBONES is a dictionary you can read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metasp.errors import unknown
from metasp.lazy import lazily, load

if TYPE_CHECKING:
    from metasp.backbones.networks import CONSTANT, DRAWN, build, initialise

LATER = dict.fromkeys(("CONSTANT", "DRAWN", "build", "initialise"), "networks")
__getattr__ = lazily(__name__, LATER)
__all__ = ["BACKBONES", "CONSTANT", "DRAWN", "Backbone", "build", "default_width", "initialise"]


@dataclass(frozen=True)
class Backbone:
    """A network by the name of its class, which is loaded when it is first built."""

    of: str  # "module:Class", made of the inputs' shape, the number of classes and a width
    width: int  # unless told otherwise
    help: str

    @property
    def kind(self) -> Callable[..., Any]:
        network: Callable[..., Any] = load(self.of)
        return network


BACKBONES: dict[str, Backbone] = {
    "mlp": Backbone(
        "metasp.backbones.networks:MLP", 128,
        "Two hidden layers of `width` units, for images and tables alike.",
    ),
    "convnet": Backbone(
        "metasp.backbones.networks:ConvNet", 16,
        "Three 3×3 convolutions with BatchNorm, halving the image twice, then a global mean.",
    ),
    "resnet18": Backbone(
        "metasp.backbones.networks:ResNet18", 64,
        "ResNet-18 for small images: 3×3 stem, no max-pool; `width` channels in the first stage.",
    ),
}  # fmt: skip


def default_width(name: str) -> int:
    """Return the width that a backbone has when none is asked for."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name].width
