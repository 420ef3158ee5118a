"""The published benchmarks: where they come from and the constants the field uses for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metasp.benchmarks.cache import Decoded, Pictures, Table, content_digest, decoded, is_cached
from metasp.benchmarks.pictures import Decoder
from metasp.benchmarks.source import Source, held_out
from metasp.benchmarks.tables import Columns, open_hub, open_local, read_tables, splits_in
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

    @property
    def channels(self) -> int:
        return 1 if self.colour == "grey" else 3


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


def published(about: Published, data: Path | None) -> Source:
    """A published set from a local folder, from the cache, or from the hub."""
    found = decode(about, data)
    if len(found.class_names) != about.classes:
        raise UserError(
            f"{about.folder} has {len(found.class_names)} classes and should have "
            f"{about.classes}: this is another data set; give it as folder: or hub: instead."
        )
    if about.pooled:
        # The hub's test split is 50 further pictures per class; the field pools the 600 others.
        pool = found.rows("train", "validation")
        out = held_out(found.labels[pool], found.class_names)
        train, test = pool[~out], pool[out]
    else:
        train, test = found.rows("train"), found.rows("test")
    if not len(train) or not len(test):
        raise UserError(f"{about.folder} lacks its {'test' if len(train) else 'train'} split.")
    colour = about.colour == "rgb"
    return Source(
        name=about.folder,
        inputs=found.inputs,
        labels=found.labels[train],
        test_inputs=found.inputs,
        test_labels=found.labels[test],
        class_names=found.class_names,
        mean=about.mean,
        std=about.std,
        digest=found.digest,
        tasks=about.tasks,
        crop_padding=4 if colour else 0,
        flip=colour,
        ids=train,
        rows=train,
        test_rows=test,
    )


def decode(about: Published, data: Path | None) -> Decoded:
    decoder = Decoder(about.size, about.colour)
    columns = Columns(about.label)
    folder = local_folder(about, data)
    if folder is None:
        name = about.hub

        def read(out: Pictures) -> Table:
            return read_tables(*open_hub(name), decoder, columns, out)

        return decoded(identity(about, {"hub": name}), read)
    splits = splits_in(folder)
    files = sorted(path for paths in splits.values() for path in paths)
    content = content_digest(files, folder)
    return decoded(
        identity(about, {"content": content}),
        lambda out: read_tables(*open_local(splits), decoder, columns, out),
    )


def identity(about: Published, origin: dict[str, str]) -> dict[str, Any]:
    """What a decoded copy depends on."""
    return {**origin, "size": about.size, "colour": about.colour, "label": about.label}


def local_folder(about: Published, data: Path | None) -> Path | None:
    """The folder of a set under `data`, by its short name or by its name on the hub."""
    if data is None:
        return None
    if not data.is_dir():
        raise UserError(f"{data} is not a folder: name the one that holds the data with --data.")
    names = (about.folder, about.hub, about.hub.split("/")[1])
    return next((data / name for name in names if (data / name).is_dir()), None)


def whereabouts(about: Published, data: Path | None) -> str:
    """Where on this machine a set is, in words."""
    folder = local_folder(about, data) if data is not None and data.is_dir() else None
    if folder is not None:
        return str(folder)
    return "cached" if is_cached(identity(about, {"hub": about.hub})) else "not here"
