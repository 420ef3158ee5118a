"""Examples judged before they are learned, and a log of what was thought and done of each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from metasp.engine.task_tables import FATES
from metasp.errors import UserError
from metasp.learner.checks import check_arrivals
from metasp.learner.data import Arrivals, translated
from metasp.learner.ids import ids_of
from metasp.learner.view import numbers
from metasp.methods.judging import Verdicts, judge
from metasp.types import Examples, Rows, State

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner

JUDGED = "judged"
WHAT = (JUDGED, *FATES)
UNNAMED = -1  # the id of an example that was judged without one
MOST_ROWS = 100_000  # of the log; the oldest leave first


class Audit:
    """One row for each time an example was judged, or learned in a task: its id, the number of
    tasks learned before, what happened, the chance that its label is wrong and its mean weight
    relative to an even one (NaN: not known). It holds nothing else of any example."""

    def __init__(self) -> None:
        self.whole = torch.zeros(0, 3, dtype=torch.long)  # id, task, what
        self.parts = torch.zeros(0, 2, dtype=torch.float64)  # wrong, weight

    def add(self, ids: Tensor, task: int, what: Tensor, wrong: Tensor, weight: Tensor) -> None:
        whole = torch.stack([ids, torch.full_like(ids, task), what], dim=1)
        parts = torch.stack([wrong.double(), weight.double()], dim=1)
        self.whole = torch.cat([self.whole, whole])[-MOST_ROWS:]
        self.parts = torch.cat([self.parts, parts])[-MOST_ROWS:]

    def add_task(self, task: int, scores: Mapping[str, Sequence[Any]]) -> None:
        """What became of the examples of a task that has been learned, by the table of how they
        fared."""
        if not scores:
            return
        right, weight = (
            torch.from_numpy(np.array(scores[name], dtype=np.float64))
            for name in ("score", "weight")
        )
        what = torch.tensor([WHAT.index(fate) for fate in scores["fate"]], dtype=torch.long)
        self.add(torch.tensor(scores["id"]), task, what, (1 - right) / 2, weight)

    def without(self, ids: Tensor) -> "Audit":
        """The same for all but these ids."""
        kept, rest = ~torch.isin(self.whole[:, 0], ids), Audit()
        rest.whole, rest.parts = self.whole[kept], self.parts[kept]
        return rest

    def table(self) -> pa.Table:
        """Columns id, task, what, wrong and weight, in the order in which it happened."""
        ids, tasks, what = (column.tolist() for column in self.whole.unbind(1))
        return pa.table(
            {
                "id": pa.array([None if i == UNNAMED else i for i in ids], pa.int64()),
                "task": pa.array(tasks, pa.int64()),
                "what": pa.array([WHAT[code] for code in what], pa.string()),
                "wrong": numbers(self.parts[:, 0].numpy()),
                "weight": numbers(self.parts[:, 1].numpy()),
            }
        )

    def state(self) -> State:
        return {"whole": self.whole, "parts": self.parts}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Audit":
        found = cls()
        if state:  # older learners have none
            found.whole, found.parts = state["whole"].clone(), state["parts"].clone()
        return found


def judged(learner: "ContinualLearner", found: Arrivals, ids: Rows | None) -> pa.Table:
    """What is thought of the examples, as a table; it is noted in the learner's log."""
    if not found.are_classes:
        raise UserError("only labels that are classes can be judged: give class numbers or names.")
    called = [*learner._names, *(name for name in found.names if name not in learner._names)]
    found = translated(found, learner._names)
    encoder = learner._parts.encoder
    if encoder is not None and learner.settings.keep == "features":
        found = found._replace(inputs=encoder.for_model(found.inputs).cpu())
    check_arrivals(learner._trainer.learner, found, learner._trainer.tasks, learner._learned)
    context = learner._trainer.learner
    names = torch.full((len(found.labels),), UNNAMED)
    if ids is not None:
        names = ids_of(ids, len(found.labels), 0)
    verdicts = judge(context, Examples.of(found.inputs, found.labels, names))
    unknown = torch.full((len(names),), torch.nan)
    what = torch.full_like(names, WHAT.index(JUDGED))
    learner._audit.add(names, learner.tasks, what, verdicts.wrong, unknown)
    return as_table(verdicts, found.labels, names, called)


def as_table(verdicts: Verdicts, labels: Tensor, ids: Tensor, names: Sequence[str]) -> pa.Table:
    """One row per example; classes by their names where they have any."""

    def named(classes: Tensor) -> Sequence[str | int]:
        return [names[c] if names else c for c in classes.tolist()]

    return pa.table(
        {
            "id": pa.array([None if i == UNNAMED else i for i in ids.tolist()], pa.int64()),
            "label": named(labels),
            "stability": numbers(verdicts.stability.numpy()),
            "plasticity": numbers(verdicts.plasticity.numpy()),
            "wrong": numbers(verdicts.wrong.numpy()),
            "looks_like": named(verdicts.looks_like),
        }
    )
