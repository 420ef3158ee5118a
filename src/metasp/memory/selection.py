"""Selections by name: what a memory may keep. SELECTIONS is a dictionary you can read; the code of
an entry is loaded when it is first used."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metasp.errors import UserError, unknown
from metasp.lazy import load

if TYPE_CHECKING:
    import torch

    from metasp.memory.buffer import Column, Decide, Memory, Placement
    from metasp.types import Batch


@dataclass(frozen=True)
class Selection:
    """A decision, by its function or by "module:function", and its moment: after every step of a
    first epoch ("step"), or at the end of a task ("task")."""

    of: "Decide | str"
    help: str
    at: str = "task"
    points: str = "pixels"  # the points that it clusters, if it does: "pixels" | "features"
    classes: bool = False  # whether it shares the memory by class, so that labels must be classes
    measured: bool = False  # whether it needs a method that measures influence
    judged: bool = False  # whether it goes by how likely labels are right
    # Columns of the memory that its placements give values for, or "module:name" of them.
    columns: "tuple[Column | str, ...]" = ()
    # The decision after each step of the task at hand, for one that decides at the task's end.
    meanwhile: "Decide | str | None" = None

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
        interim: Decide | None = (
            load(self.meanwhile) if isinstance(self.meanwhile, str) else self.meanwhile
        )
        return interim

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


def _balanced(name: str, help: str, **facts: Any) -> Selection:
    return Selection(f"metasp.memory.balanced:{name}", help, **facts)


def _ranked(name: str, help: str, meanwhile: str | None = None, **facts: Any) -> Selection:
    """Return a selection that keeps representatives of each class in the order of their choice."""
    module = "metasp.memory.herding"
    return Selection(
        f"{module}:{name}",
        help,
        points="features",
        classes=True,
        columns=(f"{module}:RANK",),
        meanwhile=meanwhile and f"{module}:{meanwhile}",
        **facts,
    )


def _rehsel(name: str, help: str, measured: bool = True, points: str = "pixels") -> Selection:
    return Selection(f"metasp.memory.rehsel:{name}", help, points=points, measured=measured)


SELECTIONS: dict[str, Selection] = {
    "reservoir": _balanced("reservoir", "every example offered has the same chance", at="step"),
    "ring": _balanced("ring", "the newest of each task, an equal share each", at="step"),
    "greedy": _balanced(
        "greedy", "balanced over classes at every moment (GDumb)", at="step", classes=True
    ),
    "gradient-diverse": _balanced(
        "gradient_diverse", "gradients unlike the others (GSS)", at="step",
        columns=("metasp.memory.balanced:REDUNDANCY",),
    ),
    "class-balanced": _balanced(
        "class_balanced", "random, an equal share per class", classes=True
    ),
    "low-loss": _balanced(
        "low_loss", "class-balanced, of the half of each class with the lower loss", classes=True
    ),
    "herding": _ranked("herding", "class-balanced, their mean nearest to that of the class"),
    "herding-online": _ranked(
        "herding", "the same, and a share of the present task until it ends", "filling"
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
    "task-balanced": _balanced("task_balanced", "random, an equal share per task"),
    "random": _balanced("task_balanced", "the paper's name for task-balanced"),
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
