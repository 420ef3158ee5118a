"""Why a run ended as it did: a row for each example, and how far to trust it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from metasp.methods import added_by, method_named
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.run_tables import WHY, WHY_FILE
from metasp.types import Task
from metasp.whole_run.backwards import Derivatives, walk
from metasp.whole_run.queries import NOTHING, Query, queries_of
from metasp.whole_run.rerun import Progress, Rerun
from metasp.whole_run.retraining import LIMIT, Check, agreement, leave_out

COLUMNS = ("id", "task", "stability", "plasticity", "total", "direct", "through_memory")
ADVICE = (
    "take a smaller learning rate, less momentum or smooth activations, or average over seeds by "
    "naming several runs"
)


@dataclass
class Answer:
    """The influence of every example of a finished run on its final losses.

    query: what was asked about.
    tasks: of the losses in `on_tasks`.
    rows: as WHY.
    held: what stays as the run decided it.
    check: groups that were really left out, if that was asked for."""

    query: str
    tasks: list[int]
    rows: pa.Table
    held: list[str]
    notes: list[str] = field(default_factory=list)
    check: Check | None = None

    @property
    def growth(self) -> float:
        """Return how many times larger the adjoint is at the start of the run than at its end."""
        return float(self.rows["growth"][0].as_py())

    @property
    def agreement(self) -> float:
        """Return how well finite steps along random weights follow the derivatives, up to 1."""
        return float(self.rows["agreement"][0].as_py())

    @property
    def trusted(self) -> bool:
        """Return whether single scores may be believed."""
        return self.agreement >= LIMIT

    @property
    def on_tasks(self) -> Tensor:
        """Return the derivatives of each loss, (queries, n)."""
        return torch.tensor(self.rows["on_tasks"].to_pylist(), dtype=torch.float64).T

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, the most harmful first."""
        return list(self.rows.select(COLUMNS).sort_by([("total", "descending")]).to_pylist())


def why(
    run: RunDir,
    data: Path | None = None,
    query: str = "test",
    task_il: bool = False,
    check: int = 0,
    tell: Progress = lambda done: None,
) -> Answer:
    """Return how the final losses of a finished run depend on the weights of its examples, as the
    run stores it or by a walk backwards, which is stored; leave `check` random groups out."""
    key = key_of(query, task_il)
    stored = run.table(WHY_FILE)
    rows = None if stored is None else stored.filter(pa.array(of_key(stored, key)))
    rerun = Rerun.of(run, data)
    queries = queries_of(rerun.benchmark.tasks, query, task_il)
    held = decided(rerun.spec)
    if rows is None or not len(rows):
        found = walk(rerun, queries, lambda done: tell(0.7 * done))
        with rerun.threads():
            agrees = agreement(rerun, queries, found, lambda done: tell(0.7 + 0.3 * done))
        rows = table_of(found, queries, rerun.benchmark.tasks, (key, agrees))
        others = [] if stored is None else [stored]
        run.attach(WHY_FILE, pa.concat_tables([*others, rows]))
    tasks = [one.task for one in queries]
    answer = Answer(key, tasks, rows, held, list(dict.fromkeys(rerun.notes)))
    if check:
        with rerun.threads():
            ids = torch.tensor(rows["id"].to_pylist())
            answer.check = leave_out(rerun, queries, ids, answer.on_tasks, check, tell)
    return answer


def of_key(stored: pa.Table, key: str) -> np.ndarray[Any, Any]:
    """Mark the rows of a stored query."""
    return np.array([name == key for name in stored["query"].to_pylist()], bool)


def key_of(query: str, task_il: bool) -> str:
    """Return what names a query in the stored table: a file by its content."""
    if query not in NOTHING and Path(query).is_file():
        query = f"ids {hashlib.sha256(Path(query).read_bytes()).hexdigest()[:12]}"
    return f"{query}, {'task-IL' if task_il else 'class-IL'}"


def table_of(
    found: Derivatives, queries: Sequence[Query], tasks: Sequence[Task], about: tuple[str, float]
) -> pa.Table:
    """Return one row for each training example, by id: the derivatives of the mean loss of older
    tasks (stability), of its own (plasticity) and of all tasks, and of each."""
    asked = torch.tensor([query.task for query in queries])
    task_of_id = torch.full((len(found.ids),), -1)
    for task in tasks:
        parts = [task.train, *([task.trusted] if task.trusted is not None else [])]
        for part in parts:
            task_of_id[torch.searchsorted(found.ids, part.ids)] = task.index
    each = found.direct + found.replayed
    older = (asked[:, None] < task_of_id).double()
    stability = (each * older).sum(0) / older.sum(0)  # NaN in the first task
    same = (asked[:, None] == task_of_id).double()
    plasticity = (each * same).sum(0) / same.sum(0)
    columns = {
        "id": found.ids,
        "task": task_of_id,
        "stability": stability,
        "plasticity": plasticity,
        "total": each.mean(0),
        "direct": found.direct.mean(0),
        "through_memory": found.replayed.mean(0),
    }
    trained = task_of_id >= 0
    count = int(trained.sum())
    key, agrees = about
    arrays = {
        "query": [key] * count,
        **{name: pa.array(t[trained].numpy(), from_pandas=True) for name, t in columns.items()},
        "on_tasks": each[:, trained].T.tolist(),
        "growth": [found.growth] * count,
        "agreement": [agrees] * count,
    }
    return pa.table(arrays, schema=WHY)


def decided(spec: RunSpec) -> list[str]:
    """Return what the answer holds as the run decided it."""
    recipe, added = method_named(spec.method), added_by(spec.influence)
    held = ["the rows of each step and their order"]
    if recipe.selection is not None:
        held.append("what the memory holds")
    if any(column.of == "outputs" for column in recipe.kind.columns):
        held.append("stored outputs")
    if added is not None or recipe.kind.measures or recipe.kind.judges():
        held.append("weights by influence")
    if spec.validation:
        held.append("which epoch was best")
    return held
