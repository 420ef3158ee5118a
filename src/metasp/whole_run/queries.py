"""The losses that are asked about: of each task's examples, at the end of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from metasp.corrections import read_rows, words
from metasp.errors import UserError
from metasp.influence.functional import Named
from metasp.methods.context import TrainingContext, evaluating
from metasp.trees import at_once, call
from metasp.types import Examples, Task
from metasp.whole_run.normalisation import by_running_statistics, running_statistics

MOST = 10_000_000  # rows of a file of ids
NOTHING = {
    "test": "this stream has no test examples: ask about others with --query FILE.",
    "validation": "this run holds no examples out: train it with --validation 0.1, or ask about "
    "examples of your own with --query FILE.",
}


@dataclass(frozen=True)
class Query:
    """The mean cross-entropy of some examples of one task among some classes."""

    task: int
    examples: Examples
    classes: tuple[int, ...]

    def loss(self, learner: TrainingContext, model: nn.Module, rows: Tensor) -> Tensor:
        """Return what the examples in these rows add to the mean."""
        batch = learner.unaugmented(self.examples.take(rows))
        outputs = call(model, batch.inputs)
        index = torch.tensor(self.classes, device=outputs.device)
        labels = torch.searchsorted(index, batch.labels.to(index))
        loss = torch.nn.functional.cross_entropy(outputs[:, index], labels, reduction="sum")
        return loss / len(self.examples)

    def portions(self) -> Sequence[Tensor]:
        """Return the rows that are looked at together."""
        return torch.split(torch.arange(len(self.examples)), at_once(self.examples.source))


def queries_of(tasks: Sequence[Task], what: str, task_il: bool) -> list[Query]:
    """Return one query for each task that has examples to ask about: its "test" or "validation"
    examples, or those of its training and held-out examples that a CSV file names by id."""
    every = sorted(set(chain.from_iterable(task.classes for task in tasks)))
    if not every:
        raise UserError("the tasks of this run have no classes, so there is no loss to ask about.")
    wanted = None if what in NOTHING else torch.tensor([*read_rows(Path(what), MOST)])
    queries, found = [], 0
    for task in tasks:
        examples = task.test if what == "test" else task.validation
        if wanted is not None:
            parts = [part for part in (task.train, task.validation, task.trusted) if part]
            named = [part.only(torch.isin(part.ids, wanted).nonzero()[:, 0]) for part in parts]
            examples = Examples.join(named)
        if examples is not None and len(examples):
            found += len(examples)
            classes = tuple(sorted(task.classes)) if task_il else tuple(every)
            queries.append(Query(task.index, examples, classes))
    if wanted is not None and found < len(wanted):
        known = {*torch.cat([query.examples.ids for query in queries] or [wanted[:0]]).tolist()}
        unknown = [i for i in wanted.tolist() if i not in known]
        raise UserError(f"{what} names {words(unknown)}, which the run has no examples of.")
    if not queries:
        raise UserError(NOTHING.get(what, f"{what} names no examples: give it rows with an id."))
    return queries


@torch.no_grad()
def losses_of(learner: TrainingContext, model: nn.Module, queries: Sequence[Query]) -> Tensor:
    """Return the loss of each query (queries,) by a model, in evaluation mode and float64."""
    with evaluating(model):
        losses = []
        for query in queries:
            parts = [query.loss(learner, model, rows).double() for rows in query.portions()]
            losses.append(torch.stack(parts).sum())
    return torch.stack(losses).cpu()


def slopes_of(learner: TrainingContext, model: nn.Module, queries: Sequence[Query]) -> Named:
    """Return the derivatives of the queries' losses for the parameters, and for the running
    statistics of BatchNorm, (queries, *shape) by name."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    running = {k: t.clone().requires_grad_() for k, t in running_statistics(model).items()}
    read = {**params, **running}
    slopes = {name: t.new_zeros((len(queries), *t.shape)) for name, t in read.items()}
    with evaluating(model), by_running_statistics(model, running):
        for at, query in enumerate(queries):
            for rows in query.portions():
                loss = query.loss(learner, model, rows)
                parts = torch.autograd.grad(loss, [*read.values()], allow_unused=True)
                for name, part in zip(read, parts):
                    if part is not None:
                        slopes[name][at] += part
    return slopes
