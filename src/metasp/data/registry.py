"""What there is to choose from, told without loading any of it."""

from dataclasses import dataclass
from pathlib import Path

from metasp.errors import UserError

EMBEDDED = (  # name, tasks, origin
    ("split-digits", "5 × 2 classes", "scikit-learn's digits"),
    (
        "rotated-digits",
        "5 angles × 10 classes",
        "scikit-learn's digits, turned by 30° more in each task",
    ),
)
OWN = {
    "hub:OWNER/NAME": "any set of pictures, texts or numbers on the Hugging Face hub",
    "folder:PATH": "one folder of pictures per class, or Parquet files",
    "csv:FILE": "a table of texts or numbers, with a column of labels",
    "json:FILE": "the same as JSON lines",
    "parquet:FILE": "the same, or pictures, as Parquet",
    "arrays:FILE.npz": "arrays `inputs` and `labels`: pictures or rows of numbers",
}


@dataclass(frozen=True)
class Published:
    """A data set on the Hugging Face hub and how it is used."""

    folder: str
    hub: str
    classes: int
    tasks: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int = 32
    colour: str = "rgb"
    label: str = "label"
    pooled: bool = False  # the hub's splits are joined and split anew


PUBLISHED: dict[str, Published] = {
    "split-fashion-mnist": Published(
        folder="fashion_mnist",
        hub="zalando-datasets/fashion_mnist",
        classes=10,
        tasks=5,
        size=28,
        colour="grey",
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "split-cifar10": Published(
        folder="cifar10",
        hub="uoft-cs/cifar10",
        classes=10,
        tasks=5,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
    ),
    "split-cifar100": Published(
        folder="cifar100",
        hub="uoft-cs/cifar100",
        classes=100,
        tasks=10,
        label="fine_label",
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
    "split-mini-imagenet": Published(
        folder="mini_imagenet",
        hub="timm/mini-imagenet",
        classes=100,
        tasks=5,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        pooled=True,
    ),
}


def listing(data: Path | None) -> list[dict[str, str]]:
    """Return a row for each benchmark: classes, tasks, image size, origin, and whether it is on
    this machine."""
    rows = [
        row(name, "10", tasks, "8×8 grey", origin, "yes (embedded)")
        for name, tasks, origin in EMBEDDED
    ]
    for name, about in PUBLISHED.items():
        folder = local_folder(data, about.folder, about.hub)
        tasks = f"{about.tasks} × {about.classes // about.tasks} classes"
        image = f"{about.size}×{about.size} {about.colour}"
        here = f"yes ({folder})" if folder else "no (downloaded when run)"
        rows.append(row(name, str(about.classes), tasks, image, f"hub: {about.hub}", here))
    for name, words in OWN.items():
        rows.append(row(name, "its own", "--tasks", "its own, or --image-size", words, ""))
    return rows


def row(name: str, classes: str, tasks: str, image: str, origin: str, here: str) -> dict[str, str]:
    return {
        "name": name,
        "classes": classes,
        "tasks": tasks,
        "image": image,
        "where from": origin,
        "on this machine": here,
    }


def local_folder(data: Path | None, *names: str) -> Path | None:
    """Return the folder of a set under `data`, by one of its names, with or without its owner."""
    if data is None:
        return None
    if not data.is_dir():
        raise UserError(f"{data} is not a folder: name the one that holds the data with --data.")
    for name in names:
        if ".." in name.split("/") or name.startswith("/"):
            raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
        for folder in (data / name, data / name.split("/")[-1]):
            if folder.is_dir():
                return folder
    return None
