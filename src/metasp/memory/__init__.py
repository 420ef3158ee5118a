"""The memory and the decisions about what it keeps. SELECTIONS is a dictionary you can read."""

from typing import TYPE_CHECKING

from metasp.errors import unknown
from metasp.lazy import lazily
from metasp.memory.policy import Selection

if TYPE_CHECKING:
    from metasp.memory.buffer import Memory
    from metasp.memory.columns import Column
    from metasp.memory.decisions import Offer
    from metasp.memory.placement import Placement

LATER = {"Column": "columns", "Memory": "buffer", "Offer": "decisions", "Placement": "placement"}
__getattr__ = lazily(__name__, LATER)
__all__ = ["SELECTIONS", "Column", "Memory", "Offer", "Placement", "Selection", "selection"]


def by_features(
    decide: str,
    help: str,
    measured: bool = False,
    judged: bool = False,
    meanwhile: str | None = None,
) -> Selection:
    """One that keeps what stands for its class, in the order in which it was chosen."""
    place = "metasp.memory.representative:"
    return Selection(
        place + decide,
        "task",
        help,
        "features",
        classes=True,
        measured=measured,
        judged=judged,
        columns=(f"{place}RANK",),
        meanwhile=meanwhile and place + meanwhile,
    )


SELECTIONS: dict[str, Selection] = {
    "reservoir": Selection(
        "metasp.memory.decisions:reservoir",
        "step",
        "every example offered has the same chance",
    ),
    "ring": Selection(
        "metasp.memory.decisions:ring",
        "step",
        "the newest of each task, an equal share each",
    ),
    "greedy": Selection(
        "metasp.memory.decisions:greedy",
        "step",
        "balanced over classes at every moment (GDumb)",
        classes=True,
    ),
    "gradient-diverse": Selection(
        "metasp.memory.decisions:gradient_diverse",
        "step",
        "gradients unlike the others (GSS)",
        columns=("metasp.memory.decisions:REDUNDANCY",),
    ),
    "class-balanced": Selection(
        "metasp.memory.decisions:class_balanced",
        "task",
        "random, an equal share per class",
        classes=True,
    ),
    "low-loss": Selection(
        "metasp.memory.decisions:low_loss",
        "task",
        "class-balanced, of the half of each class with the lower loss",
        classes=True,
    ),
    "herding": by_features("herding", "class-balanced, their mean nearest to that of the class"),
    "herding-online": by_features(
        "herding", "the same, and a share of the present task until it ends", meanwhile="filling"
    ),
    "herding-low-loss": by_features(
        "herding_low_loss", "the same, of the half of each class with the lower loss"
    ),
    "herding-low-influence": by_features(
        "herding_low_influence", "the same, of the half that influence finds helpful", measured=True
    ),
    "kmeans-features": by_features(
        "kmeans_features", "class-balanced, nearest to the centre of each cluster of features"
    ),
    "kmeans-features-low-loss": by_features(
        "kmeans_low_loss", "the same, of the half of each class with the lower loss"
    ),
    "kmeans-features-low-influence": by_features(
        "kmeans_low_influence", "the same, of the half that influence finds helpful", measured=True
    ),
    "judged": by_features(
        "judged", "class-balanced, by herding among what is probably labelled right", judged=True
    ),
    "task-balanced": Selection(
        "metasp.memory.decisions:task_balanced",
        "task",
        "random, an equal share per task",
    ),
    "random": Selection(
        "metasp.memory.decisions:task_balanced",
        "task",
        "the paper's name for task-balanced",
    ),
    "rehsel": Selection(
        "metasp.memory.rehsel:rehsel",
        "task",
        "by influence, the best of each cluster of pixels",
        measured=True,
    ),
    "rehsel-features": Selection(
        "metasp.memory.rehsel:rehsel",
        "task",
        "by influence, the best of each cluster of features",
        "features",
        measured=True,
    ),
    "rehsel-without-cluster": Selection(
        "metasp.memory.rehsel:rehsel_without_cluster",
        "task",
        "by influence alone",
        measured=True,
    ),
    "rehsel-without-influence": Selection(
        "metasp.memory.rehsel:rehsel_without_influence",
        "task",
        "nearest to the centre of each cluster of pixels",
    ),
    "rehsel-filter": Selection(
        "metasp.memory.rehsel:rehsel_filter",
        "task",
        "nearest to each centre, of the half that influence finds helpful",
        measured=True,
    ),
    "rehsel-filter-by-loss": Selection(
        "metasp.memory.rehsel:rehsel_filter_by_loss",
        "task",
        "its control: of the half that has the lower mean loss",
        measured=True,
    ),
}
"""What a memory may keep, by name. Add one of your own, and `selection=` takes its name."""


def selection(name: str) -> Selection:
    """What a memory keeps, by its name in SELECTIONS."""
    if name not in SELECTIONS:
        raise unknown("selection", name, SELECTIONS)
    return SELECTIONS[name]
