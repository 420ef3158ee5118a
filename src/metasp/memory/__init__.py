"""The memory, and the selections that decide which offered examples enter it.

SELECTIONS is a dictionary you can read; the code of an entry is loaded when it is first used."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError, unknown
from metasp.lazy import lazily, load

if TYPE_CHECKING:
    import torch

    from metasp.memory.buffer import Column, Decide, Memory, Offer, Placement
    from metasp.types import Batch

__getattr__ = lazily(__name__, dict.fromkeys(("Column", "Memory", "Offer", "Placement"), "buffer"))
__all__ = ["SELECTIONS", "Column", "Memory", "Offer", "Placement", "Selection", "selection"]


@dataclass(frozen=True)
class Selection:
    """A decision about offered rows and the moment at which it is taken.

    of: the function that decides, or "module:function".
    at: "step", after every step of a task's first epoch, or "task", at the end of a task.
    points: the points that it clusters, if it clusters: "pixels" or "features".
    classes: it shares the memory by class, so labels must be classes.
    measured: it needs a method that measures influence.
    judged: it needs a method that says how likely labels are right.
    columns: columns of the memory that its placements give values for, or "module:name" of them.
    interim: the decision after each step of the current task, for one taken at the task's end."""

    of: "Decide | str"
    help: str
    at: str = "task"
    points: str = "pixels"
    classes: bool = False
    measured: bool = False
    judged: bool = False
    columns: "tuple[Column | str, ...]" = ()
    interim: "Decide | str | None" = None

    @property
    def decide(self) -> "Decide":
        """Return the function that decides."""
        decision: Decide = load(self.of) if isinstance(self.of, str) else self.of
        return decision

    @property
    def at_step(self) -> "Decide | None":
        """Return the function that decides after a step; None: nothing does."""
        if self.at == "step":
            return self.decide
        decision: Decide | None = (
            load(self.interim) if isinstance(self.interim, str) else self.interim
        )
        return decision

    def offer(
        self, memory: "Memory", batch: "Batch", task: int, generator: "torch.Generator"
    ) -> "Placement":
        """Decide about a raw batch and write the decision, for a loop of one's own. Returns the
        placement."""
        from metasp.memory.buffer import Offer

        if self.measured:
            raise UserError(
                "this selection goes by influence, and a batch alone has none: make an Offer with "
                "it and apply what `decide` says (see `docs/own-loop.md`)."
            )
        offer = Offer(batch.labels.cpu(), batch.ids, task, 0)
        placement = self.decide(memory, offer, generator)
        memory.apply(placement, batch, task)
        return placement


BALANCED, HERDING, REHSEL = (
    "metasp.memory.balanced",
    "metasp.memory.herding",
    "metasp.memory.rehsel",
)


def _ranked(function: str, help: str, **facts: Any) -> Selection:
    """Return a selection that keeps representatives of each class in the order of their choice."""
    decision, rank = f"{HERDING}:{function}", (f"{HERDING}:RANK",)
    return Selection(decision, help, points="features", classes=True, columns=rank, **facts)


def _rehsel(function: str, help: str, measured: bool = True, points: str = "pixels") -> Selection:
    return Selection(f"{REHSEL}:{function}", help, points=points, measured=measured)


SELECTIONS: dict[str, Selection] = {
    "reservoir": Selection(
        f"{BALANCED}:reservoir", "every example offered has the same chance", at="step"
    ),
    "ring": Selection(
        f"{BALANCED}:ring", "the newest of each task, an equal share each", at="step"
    ),
    "greedy": Selection(
        f"{BALANCED}:greedy", "balanced over classes at every moment (GDumb)", at="step",
        classes=True,
    ),
    "gradient-diverse": Selection(
        f"{BALANCED}:gradient_diverse", "gradients unlike the others (GSS)", at="step",
        columns=(f"{BALANCED}:REDUNDANCY",),
    ),
    "asymmetric": Selection(
        f"{BALANCED}:asymmetric", "reservoir that drops high loss now, low loss of the past (ABS)",
        at="step", columns=(f"{BALANCED}:REPLAY_LOSS",),
    ),
    "class-balanced": Selection(
        f"{BALANCED}:class_balanced", "random, an equal share per class", classes=True
    ),
    "low-loss": Selection(
        f"{BALANCED}:low_loss", "class-balanced, of the half of each class with the lower loss",
        classes=True,
    ),
    "herding": _ranked("herding", "class-balanced, their mean nearest to that of the class"),
    "herding-online": _ranked(
        "herding", "the same, and a share of the present task until it ends",
        interim=f"{HERDING}:filling",
    ),
    "herding-low-loss": _ranked(
        "herding_low_loss", "the same, of the half of each class with the lower loss"
    ),
    "herding-low-influence": _ranked(
        "herding_low_influence", "the same, of the half that influence finds helpful", measured=True
    ),
    "kmeans-features": _ranked(
        "kmeans_features", "class-balanced, nearest to the centre of each cluster of features"
    ),
    "kmeans-features-low-loss": _ranked(
        "kmeans_low_loss", "the same, of the half of each class with the lower loss"
    ),
    "kmeans-features-low-influence": _ranked(
        "kmeans_low_influence", "the same, of the half that influence finds helpful", measured=True
    ),
    "judged": _ranked(
        "judged", "class-balanced, by herding among what is probably labelled right", judged=True
    ),
    "task-balanced": Selection(f"{BALANCED}:task_balanced", "random, an equal share per task"),
    "random": Selection(f"{BALANCED}:task_balanced", "the paper's name for task-balanced"),
    "rehsel": _rehsel("rehsel", "by influence, the best of each cluster of pixels"),
    "rehsel-features": _rehsel(
        "rehsel", "by influence, the best of each cluster of features", points="features"
    ),
    "rehsel-without-cluster": _rehsel("rehsel_without_cluster", "by influence alone"),
    "rehsel-without-influence": _rehsel(
        "rehsel_without_influence", "nearest to the centre of each cluster of pixels", False
    ),
    "rehsel-filter": _rehsel(
        "rehsel_filter", "nearest to each centre, of the half that influence finds helpful"
    ),
    "rehsel-filter-by-loss": _rehsel(
        "rehsel_filter_by_loss", "its control: of the half that has the lower mean loss"
    ),
}  # fmt: skip
"""What a memory may keep, by name. Add one of your own, and `selection=` takes its name."""


def selection(name: str) -> Selection:
    """Return a selection by its name in SELECTIONS."""
    if name not in SELECTIONS:
        raise unknown("selection", name, SELECTIONS)
    return SELECTIONS[name]
