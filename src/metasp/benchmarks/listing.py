"""What there is to choose from, told without loading any of it."""

from pathlib import Path

from metasp.benchmarks.published import PUBLISHED, whereabouts

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
