"""The published benchmarks: where they come from and the constants the field uses for them."""

from dataclasses import dataclass, replace
from pathlib import Path

from metasp.benchmarks.cache import is_cached
from metasp.benchmarks.own import (
    held_out_source,
    hub_identity,
    local_folder,
    read_table_set,
    source_of,
)
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source, constants
from metasp.errors import UserError


@dataclass(frozen=True)
class Published:
    """A data set on the Hugging Face hub and how it is used."""

    folder: str
    hub: str
    classes: int
    tasks: int
    size: int
    colour: str
    label: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pooled: bool = False  # the hub's splits are joined and split anew


PUBLISHED: dict[str, Published] = {
    "split-fashion-mnist": Published(
        folder="fashion_mnist",
        hub="zalando-datasets/fashion_mnist",
        classes=10,
        tasks=5,
        size=28,
        colour="grey",
        label="label",
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "split-cifar10": Published(
        folder="cifar10",
        hub="uoft-cs/cifar10",
        classes=10,
        tasks=5,
        size=32,
        colour="rgb",
        label="label",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
    ),
    "split-cifar100": Published(
        folder="cifar100",
        hub="uoft-cs/cifar100",
        classes=100,
        tasks=10,
        size=32,
        colour="rgb",
        label="fine_label",
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
    "split-mini-imagenet": Published(
        folder="mini_imagenet",
        hub="timm/mini-imagenet",
        classes=100,
        tasks=5,
        size=32,
        colour="rgb",
        label="label",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        pooled=True,
    ),
}


def published(about: Published, request: Request, data: Path | None) -> Source:
    """A published set from a local folder, from the cache, or from the hub."""
    asked = Request(
        image_size=request.image_size or about.size,
        colour=request.colour or about.colour,
        label_column=request.label_column or about.label,
        domain_column=request.domain_column,
    )
    found = read_table_set(about.hub, local_folder(data, about.folder, about.hub), asked)
    usual = asked.label_column == about.label
    if usual and len(found.class_names) != about.classes:
        raise UserError(
            f"{about.folder} has {len(found.class_names)} classes and should have "
            f"{about.classes}: this is another data set; give it as folder: or hub: instead."
        )
    if about.pooled:
        # The hub's test split is 50 further pictures per class; the field pools the 600 others.
        source = held_out_source(about.folder, found, found.rows("train", "validation"))
    else:
        for split in ("train", "test"):
            if not found.splits.get(split):
                raise UserError(f"{about.folder} lacks its {split} split: get it again.")
        source = source_of(about.folder, found, found.rows("train"), found.rows("test"))
    mean, std = about.mean, about.std
    if asked.colour != about.colour:
        mean, std = constants(source.train)
    colour = asked.colour == "rgb"
    return replace(
        source,
        mean=mean,
        std=std,
        tasks=about.tasks,
        crop_padding=4 if colour else 0,
        flip=colour,
    )


def whereabouts(about: Published, data: Path | None) -> str:
    """Where on this machine a set is, in words; empty if it is not."""
    folder = local_folder(data, about.folder, about.hub)
    if folder is not None:
        return str(folder)
    asked = Request(about.size, about.colour, about.label)
    return "cached" if is_cached(hub_identity(about.hub, asked)) else ""
