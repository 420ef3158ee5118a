"""What there is to choose from, told without loading any of it."""

from dataclasses import dataclass
from pathlib import Path

from metasp.benchmarks.request import local_folder

EMBEDDED = {
    "split-digits": {"classes": "10", "tasks": "5 × 2 classes", "origin": "scikit-learn's digits"},
    "rotated-digits": {
        "classes": "10",
        "tasks": "5 angles × 10 classes",
        "origin": "scikit-learn's digits, turned by 30° more in each task",
    },
}
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
        {
            "name": name,
            "classes": about["classes"],
            "tasks": about["tasks"],
            "image": "8×8 grey",
            "where from": about["origin"],
            "on this machine": "yes (embedded)",
        }
        for name, about in EMBEDDED.items()
    ]
    for name, about in PUBLISHED.items():
        folder = local_folder(data, about.folder, about.hub)
        rows.append(
            {
                "name": name,
                "classes": str(about.classes),
                "tasks": f"{about.tasks} × {about.classes // about.tasks} classes",
                "image": f"{about.size}×{about.size} {about.colour}",
                "where from": f"hub: {about.hub}",
                "on this machine": f"yes ({folder})" if folder else "no (downloaded when run)",
            }
        )
    rows += [
        {
            "name": name,
            "classes": "its own",
            "tasks": "--tasks",
            "image": "its own, or --image-size",
            "where from": words,
            "on this machine": "",
        }
        for name, words in OWN.items()
    ]
    return rows
