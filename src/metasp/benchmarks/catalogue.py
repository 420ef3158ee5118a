"""What there is to choose from, told without loading any of it."""

from dataclasses import dataclass
from pathlib import Path

from metasp.benchmarks.places import hub_identity, is_cached, local_folder
from metasp.benchmarks.request import Request

EMBEDDED = {
    "split-digits": {"classes": "10", "tasks": "5 × 2 classes", "origin": "scikit-learn's digits"},
    "rotated-digits": {
        "classes": "10",
        "tasks": "5 angles × 10 classes",
        "origin": "scikit-learn's digits, turned by 30° more in each task",
    },
}
OWN = {
    "hub:OWNER/NAME": "any set of pictures on the Hugging Face hub",
    "folder:PATH": "one folder of pictures per class, or Parquet files",
    "arrays:FILE.npz": "arrays `inputs` and `labels`: pictures or rows of numbers",
}


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


def listing(data: Path | None) -> list[dict[str, str]]:
    """For each benchmark: classes, tasks, image size, origin, and whether it is here."""
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
    for name, entry in PUBLISHED.items():
        place = whereabouts(entry, data)
        rows.append(
            {
                "name": name,
                "classes": str(entry.classes),
                "tasks": f"{entry.tasks} × {entry.classes // entry.tasks} classes",
                "image": f"{entry.size}×{entry.size} {entry.colour}",
                "where from": f"hub: {entry.hub}",
                "on this machine": f"yes ({place})" if place else "no (downloaded when run)",
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


def whereabouts(about: Published, data: Path | None) -> str:
    """Where on this machine a set is, in words; empty if it is not."""
    folder = local_folder(data, about.folder, about.hub)
    if folder is not None:
        return str(folder)
    asked = Request(about.size, about.colour, about.label)
    return "cached" if is_cached(hub_identity(about.hub, asked)) else ""
