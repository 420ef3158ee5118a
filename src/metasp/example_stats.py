"""Statistics per example id: means of what was measured of it, and the latest values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import Rows, State, Task

INFLUENCE = ("stability", "plasticity", "fused")
TRAINING = ("loss", "margin", "weight")
LATEST = ("predicted",)
MOST_WAITING, MOST_NUMBERS = 64, 2**18  # updates, and numbers of their outputs, that may wait
MOST_OUTPUTS = 2**23  # sums of outputs that may be kept; of more examples none are
NO_IDS = torch.zeros(0, dtype=torch.long)


class ExampleStats:
    """Sum and count of named quantities, and latest values of others, for each example id.

    Sums are float64 and entered in the order of the run, which its seed fixes: the same run gives
    the same bits, stopped or not. Without `ids` each id that is added gets a row; with `ids` these
    have one and all others are left out. With `one_count` all quantities are known or unknown
    together, so that one count per id is enough."""

    def __init__(
        self,
        *names: str,
        ids: Tensor | None = None,
        latest: Sequence[str] = (),
        dtype: torch.dtype = torch.float64,
        one_count: bool = False,
    ) -> None:
        self.names, self.latest = names, tuple(latest)
        self._row: dict[int, int] | None = {} if ids is None else None
        self._ids = NO_IDS if ids is None else ids.sort().values
        size = len(self._ids)
        self._sums = torch.zeros(size, len(names), dtype=dtype)
        self._counts = torch.zeros(size, 1 if one_count else len(names), dtype=torch.long)
        self._latest = torch.full((size, len(latest)), torch.nan, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._ids) if self._row is None else len(self._row)

    @property
    def ids(self) -> Tensor:
        """All ids, ascending."""
        return self._by_id()[0]

    def add(self, ids: Rows, **values: Rows) -> None:
        """Enter one value (n,) of each quantity for examples with these ids (n,), which may occur
        twice; NaN is a value that is not known."""
        rows, columns = _column(ids).long(), {k: _column(v).double() for k, v in values.items()}
        shapes = {column.shape for column in columns.values()}
        if columns.keys() != {*self.names} or shapes - {(len(rows),)}:
            named = " and ".join(self.names)
            raise UserError(f"statistics need one id, and one number of {named}, per example.")
        self.enter(rows, torch.stack([columns[name] for name in self.names], dim=1))

    def enter(self, ids: Tensor, values: Tensor) -> Tensor:
        """Enter values (n, quantities), NaN where unknown. Returns which of the ids (n,) count."""
        if self._row is not None:
            self._make_room(ids)
        row_of, recorded = self.rows(ids)
        counted = recorded.nonzero()[:, 0]  # once: a mask is searched anew at each use
        rows, entered = row_of[counted], values[counted].to(self._sums)
        finite = entered == entered  # what is not NaN
        self._sums.index_add_(0, rows, entered.nan_to_num(nan=0.0, posinf=None, neginf=None))
        self._counts.index_add_(0, rows, finite[:, : self._counts.shape[1]].long())
        return counted

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of each id (n,), and whether it has one (n,)."""
        if self._row is not None:
            row_of = torch.tensor([self._row.get(i, -1) for i in ids.tolist()], dtype=torch.long)
            return row_of, row_of >= 0
        row_of = torch.searchsorted(self._ids, ids)
        if not len(self._ids):
            return row_of, torch.zeros(len(ids), dtype=torch.bool)
        row_of = row_of.clamp_(max=len(self._ids) - 1)
        return row_of, self._ids[row_of] == ids

    def means(self, ids: Rows, name: str | None = None) -> Tensor:
        """Return the means (n, quantities) of examples with these ids, or those (n,) of one
        quantity; NaN: never known."""
        columns = slice(None) if name is None else slice(*self._span(name))
        row_of, recorded = self.rows(_column(ids).long())
        if not len(self):
            values = self._sums.new_full((len(row_of), len(self.names)), torch.nan)[:, columns]
        else:
            counts = self._counts[row_of]
            counts = counts if counts.shape[1] == 1 else counts[:, columns]
            values = self._sums[row_of][:, columns] / counts
            values = torch.where(recorded[:, None], values, torch.nan)
        return values if name is None else values[:, 0]

    def counts(self, ids: Tensor) -> Tensor:
        """Return how often the first quantity of each example (n,) was known."""
        row_of, recorded = self.rows(ids)
        return self._counts[row_of, 0] * recorded if len(self) else recorded.long()

    def last(self, ids: Tensor, name: str) -> Tensor:
        """Return the latest value of each example (n,), float64; NaN: none yet."""
        row_of, recorded = self.rows(ids)
        if not len(self):
            return torch.full((len(ids),), torch.nan, dtype=torch.float64)
        return torch.where(recorded, self._latest[row_of, self.latest.index(name)], torch.nan)

    def put(self, ids: Tensor, **values: Tensor) -> None:
        """Replace the latest values of examples; of an id that occurs twice the last one counts."""
        row_of, recorded = self.rows(ids)
        counted = recorded.nonzero()[:, 0]
        last = counted[_last_of_each(row_of[counted])]
        for name, column in values.items():
            self._latest[row_of[last], self.latest.index(name)] = column[last].cpu().double()

    def merge(self, stats: "ExampleStats") -> None:
        """Enter all that other statistics of the same quantities hold."""
        if stats.names != self.names:
            raise UserError(
                f"statistics of {', '.join(self.names)} cannot take those of "
                f"{', '.join(stats.names)}: make both of the same quantities."
            )
        ids, sums, counts, _ = stats._by_id()
        if self._row is not None:
            self._make_room(ids)
        row_of, recorded = self.rows(ids)
        self._sums[row_of[recorded]] += sums[recorded]
        self._counts[row_of[recorded]] += counts[recorded]

    def forget(self, ids: Tensor) -> None:
        """Drop the rows of these ids."""
        self._load(*(column[~torch.isin(self.ids, ids)] for column in self._by_id()))

    def table(self) -> dict[str, Tensor]:
        """Return columns by name: id (ascending), the mean of each quantity, count."""
        ids, sums, counts, _ = self._by_id()
        means = sums / counts.clamp_min(1)
        columns = {name: means[:, at] for at, name in enumerate(self.names)}
        return {"id": ids, **columns, "count": counts[:, 0]}

    def state_dict(self) -> State:
        """Return ids (n,), sums, counts and latest values (n, …), by id."""
        names = ("ids", "sums", "counts", "latest")
        state = dict(zip(names, self._by_id()))
        return state if self.latest else {name: state[name] for name in names[:3]}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        ids, sums, counts = (torch.as_tensor(state[name]) for name in ("ids", "sums", "counts"))
        latest = state.get("latest", self._latest.new_zeros(len(ids), 0))
        shapes = [tuple(column.shape) for column in (sums, counts, latest)]
        widths = (len(self.names), self._counts.shape[1], len(self.latest))
        if shapes != [(len(ids), width) for width in widths]:
            raise UserError("this is not the state of these statistics: it has other shapes.")
        self._load(ids, sums, counts, latest)

    def _load(self, ids: Tensor, sums: Tensor, counts: Tensor, latest: Tensor) -> None:
        """Take columns whose rows are by id."""
        if self._row is not None:
            self._row = {name: row for row, name in enumerate(ids.tolist())}
        self._ids, self._sums = ids.clone(), sums.to(self._sums.dtype, copy=True)
        self._counts, self._latest = counts.clone(), latest.double().clone()

    def _by_id(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids, sums, counts and latest values, by id."""
        if self._row is None:
            return self._ids, self._sums, self._counts, self._latest
        ids = torch.from_numpy(np.fromiter(self._row, np.int64, len(self._row)))
        order = ids.argsort()
        return ids[order], self._sums[order], self._counts[order], self._latest[order]

    def _make_room(self, ids: Tensor) -> None:
        """Give each new id a row; room grows by half, so that adding stays cheap on average."""
        row = self._row
        assert row is not None
        for name in ids.tolist():
            row.setdefault(name, len(row))
        short = len(row) - len(self._counts)
        if short > 0:
            room = short + len(self._counts) // 2
            self._sums = torch.cat([self._sums, self._sums.new_zeros(room, len(self.names))])
            blank = self._counts.new_zeros(room, self._counts.shape[1])
            self._counts = torch.cat([self._counts, blank])
            unknown_yet = self._latest.new_full((room, len(self.latest)), torch.nan)
            self._latest = torch.cat([self._latest, unknown_yet])

    def _span(self, name: str) -> tuple[int, int]:
        at = self.names.index(name)
        return at, at + 1


class Update(NamedTuple):
    """The rows of one update: ids (n,), losses (n,) with NaN for what is no loss, weights (n,) and
    those that would be even ones, labels (n,), and outputs (n, classes) where labels are
    classes."""

    ids: Tensor
    losses: Tensor
    weights: Tensor
    even: Tensor
    labels: Tensor
    outputs: Tensor | None

    @property
    def kind(self) -> tuple[object, ...]:
        """What updates that are entered together have in common."""
        return None if self.outputs is None else self.outputs.shape[1], self.labels.shape[1:]


class TrainingStats:
    """How each training example of a task has fared in the updates that it was in: its mean loss,
    its margin (the logit of its label less the largest other), its weight relative to an even one,
    and the class that the model gave it last. Where the task's classes are given, also the mean
    outputs of its examples and of those that are verified, unless these are too many numbers.

    Updates wait where they were made until there are many of them or somebody asks: entered
    together they take a step of a small network no longer than without statistics."""

    def __init__(
        self, ids: Tensor = NO_IDS, classes: Sequence[int] = (), verified: Tensor = NO_IDS
    ) -> None:
        everybody = torch.cat([ids, verified])
        fits = bool(classes) and len(everybody) * len(classes) <= MOST_OUTPUTS
        self.classes = torch.tensor(sorted(classes) if fits else [], dtype=torch.long)
        self._examples = ExampleStats(*TRAINING, ids=ids, latest=LATEST)
        self._outputs = self._outputs_of(everybody if fits else NO_IDS)
        self._waiting: list[Update] = []
        self._numbers = 0  # of the outputs that wait

    @classmethod
    def of_task(cls, task: Task) -> "TrainingStats":
        """Return those of a task before its first step."""
        verified = NO_IDS if task.trusted is None else task.trusted.ids
        return cls(task.train.ids, task.classes, verified)

    @property
    def examples(self) -> ExampleStats:
        """Loss, margin, weight and predicted class of the task's training examples."""
        self._enter()
        return self._examples

    @property
    def outputs(self) -> ExampleStats:
        """Outputs for `classes`, float32; of nobody where they are not kept."""
        self._enter()
        return self._outputs

    def note(self, update: Update) -> None:
        """Take an update in, now or later."""
        waiting = self._waiting
        if waiting and waiting[0].kind != update.kind:
            self._enter()
        waiting.append(update)
        self._numbers += len(update.ids) if update.outputs is None else update.outputs.numel()
        if len(waiting) >= MOST_WAITING or self._numbers >= MOST_NUMBERS:
            self._enter()

    def follow(self, ids: Tensor) -> None:
        """Go on with these ids: what is known of them stays, all else goes, the outputs too."""
        before, self._examples = self.examples, ExampleStats(*TRAINING, ids=ids, latest=LATEST)
        self._examples.merge(before)
        self._examples.put(ids, predicted=before.last(ids, "predicted"))
        self.classes = NO_IDS
        self._outputs = self._outputs_of(NO_IDS)

    def forget(self, ids: Tensor) -> None:
        """Drop all that is known of these ids."""
        self.examples.forget(ids)
        self.outputs.forget(ids)

    def state_dict(self) -> State:
        state = {"classes": self.classes}
        for part, stats in (("examples", self.examples), ("outputs", self.outputs)):
            state |= {f"{part}/{name}": column for name, column in stats.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._waiting.clear()
        self._numbers = 0
        self.classes = state["classes"].clone()
        self._outputs = self._outputs_of(NO_IDS)
        for part, statistics in (("examples/", self._examples), ("outputs/", self._outputs)):
            statistics.load_state_dict(
                {k.removeprefix(part): t for k, t in state.items() if k.startswith(part)}
            )

    def _enter(self) -> None:
        """Enter the updates that wait, in their order."""
        if not self._waiting:
            return
        columns = zip(*(update[:5] for update in self._waiting))
        ids, losses, weights, even, labels = (torch.cat(values) for values in columns)
        outputs = [update.outputs for update in self._waiting if update.outputs is not None]
        self._waiting.clear()
        self._numbers = 0
        margin = torch.full_like(losses, torch.nan)
        if outputs:
            logits = torch.cat(outputs)
            margin = margins(logits, labels).to(losses)
            self._examples.put(ids, predicted=logits.argmax(1))
            if len(self._outputs):
                chosen = logits[:, self.classes.to(logits.device)].cpu().float()
                self._outputs.enter(ids, chosen)
        self._examples.enter(ids, torch.stack([losses, margin, weights / even], dim=1).cpu())

    def _outputs_of(self, ids: Tensor) -> ExampleStats:
        names = map(str, self.classes.tolist())
        return ExampleStats(*names, ids=ids, dtype=torch.float32, one_count=True)


def are_classes(outputs: Tensor, labels: Tensor) -> bool:
    """Return whether outputs (n, classes) and labels (n,) are those of a classification."""
    fits = outputs.dim() == 2 and outputs.shape[1] > 1 and labels.dim() == 1
    return fits and not labels.is_floating_point()


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each row's label less the largest other, shape (n,)."""
    places = labels[:, None]
    rivals = outputs.scatter(1, places, -torch.inf)
    return outputs.gather(1, places)[:, 0] - rivals.amax(1)


def _last_of_each(rows: Tensor) -> Tensor:
    """Where each number of `rows` (n,) occurs last."""
    ordered = rows.sort(stable=True)
    ends = torch.ones(len(rows), dtype=torch.bool)
    ends[:-1] = ordered.values[1:] != ordered.values[:-1]
    return ordered.indices[ends]


def _column(values: Any) -> Tensor:
    """A vector on the CPU, without graph, of a tensor, array or list."""
    return torch.as_tensor(values).detach().cpu()
