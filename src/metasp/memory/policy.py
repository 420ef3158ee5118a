"""What a selection is: a decision by name, told without loading it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metasp.errors import UserError
from metasp.lazy import load

if TYPE_CHECKING:
    import torch

    from metasp.memory.buffer import Memory
    from metasp.memory.columns import Column
    from metasp.memory.decisions import Decide
    from metasp.memory.placement import Placement
    from metasp.types import Batch


@dataclass(frozen=True)
class Selection:
    """A decision, by its function or by "module:function", which is loaded when it is first used;
    and its moment: after every step of a first epoch, or at a task's end."""

    of: "Decide | str"
    at: str  # "step" | "task"
    help: str
    points: str = "pixels"  # what it clusters, if it does: "pixels" | "features"
    classes: bool = False  # whether it shares the memory by class, so that labels must be classes
    measured: bool = False  # whether it looks at what only a method that measures influence records
    judged: bool = False  # whether it goes by how likely labels are right
    # What it keeps of each slot, or the places of that; its placements give the values.
    columns: "tuple[Column | str, ...]" = ()
    # What a selection at a task's end keeps of the task until then, decided at each step.
    meanwhile: "Decide | str | None" = None

    @property
    def decide(self) -> "Decide":
        found: Decide = load(self.of) if isinstance(self.of, str) else self.of
        return found

    @property
    def at_step(self) -> "Decide | None":
        """What decides after a step, if anything does."""
        if self.at == "step":
            return self.decide
        found: Decide | None = (
            load(self.meanwhile) if isinstance(self.meanwhile, str) else self.meanwhile
        )
        return found

    def offer(
        self, memory: "Memory", batch: "Batch", task: int, generator: "torch.Generator"
    ) -> "Placement":
        """Decide about a raw batch and write what was decided, for a loop of one's own. Gives the
        decision."""
        from metasp.memory.decisions import Offer

        if self.measured:
            raise UserError(
                "this selection goes by influence, and a batch alone has none: make an Offer with "
                "it and apply what `decide` says (see `docs/own-loop.md`)."
            )
        offer = Offer(batch.labels.cpu(), batch.ids, task, 0)
        placement = self.decide(memory, offer, generator)
        memory.apply(placement, batch, task)
        return placement
