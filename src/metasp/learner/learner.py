"""ContinualLearner: a user's model, a method and a memory, fed one dataset after the other."""

from collections.abc import Callable, Generator
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, Unpack, cast

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from metasp.engine.trainer import Diverged
from metasp.errors import UserError
from metasp.events import Event, RunFinished, TaskFinished
from metasp.influence import Ledger
from metasp.learner import files
from metasp.learner.data import (
    Arrivals,
    Arriving,
    Data,
    Ids,
    Removal,
    check_order,
    ids_of,
    kind,
    read,
    tensor_of,
    whole_numbers,
)
from metasp.learner.from_model import (
    answers,
    build,
    check_arrivals,
    check_fit,
    check_names,
    check_trusted,
    plan_for,
    score_outputs,
    task_of,
    told_outputs,
    trainable,
)
from metasp.learner.head import head_layer, resize_head
from metasp.learner.progress import shown
from metasp.learner.randomness import OwnRandomness
from metasp.learner.settings import (
    Augment,
    LearnerSettings,
    MakeOptimizer,
    MakeScheduler,
    Metric,
    Parts,
    chosen,
)
from metasp.learner.stored import (
    back_to,
    from_file,
    modes,
    restore_modes,
    snapshot,
    to_file,
)
from metasp.learner.view import (
    InfluenceRow,
    MemoryView,
    influence_table,
    with_names,
    without_inputs,
)
from metasp.methods import Method
from metasp.methods.learner import Scoring
from metasp.typed import LearnerKeywords
from metasp.types import Batch, Examples, LossFn, Rows, State


class ContinualLearner:
    """Wraps a model so that it goes on learning from new data with a fixed memory.

    ``method`` is a name (`metasp list methods`) or a `Method` of your own. ``loss_fn(outputs,
    targets)`` gives one loss per example (default: cross-entropy) and ``metric(outputs, targets)``
    a score (default: accuracy). ``transform(inputs)`` makes network inputs of raw ones (default:
    bytes become numbers from 0 to 1), ``augment(inputs, generator)`` changes them at random while
    training. ``optimizer(parameters)`` makes what takes the steps (default: SGD with the settings
    lr, momentum and weight_decay), ``scheduler(optimizer)`` what moves its learning rate, in each
    task anew. Further settings, such as memory, lr and epochs, are the keywords of
    `metasp.typed.LearnerKeywords`; what is left out is as there, or as the method has it.

    The model is trained in place. Nothing global is seeded, and no global random stream moves:
    what a transform or module draws from torch, `random` or `numpy.random` while training comes
    from streams of the learner's own, which `seed` starts and `save` stores.
    """

    def __init__(
        self,
        model: nn.Module,
        method: "str | type[Method] | Method" = "metasp-rehsel",
        *,
        loss_fn: LossFn | None = None,
        metric: Metric | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        augment: Augment | None = None,
        optimizer: MakeOptimizer | None = None,
        scheduler: MakeScheduler | None = None,
        device: str | torch.device | None = None,
        **settings: Unpack[LearnerKeywords],
    ) -> None:
        self.model = model
        self.settings = LearnerSettings.of(settings)
        self.method, self._recipe = chosen(method)
        self._parts = Parts(loss_fn, metric, transform, augment, optimizer, scheduler)
        self._trainer = build(model, self.method, self._recipe, self.settings, self._parts, device)
        self._head = head_layer(model, self.settings.head) if self.settings.head else None
        learner = self._trainer.learner
        self._random = OwnRandomness(learner.streams, learner.device)
        self._history = Ledger(extra=("loss",))
        self._learned: list[dict[str, Any]] = []  # each task: when, how many
        self._removed: list[Removal] = []
        self._next_id = 0
        self._busy = False
        self._named = isinstance(method, str)

    def learn(
        self,
        dataset: Data,
        ids: Rows | None = None,
        test: Data | None = None,
        progress: bool = True,
        trusted: Data | None = None,
    ) -> Self:
        """Learn a new task: a torch Dataset or DataLoader, or a pair (inputs, labels). Classes may
        be new or known. ``ids`` are whole numbers that name the examples for life (default:
        running numbers); those that were forgotten are left out. With a ``test`` dataset the task
        is scored before and after. ``trusted`` are further examples whose labels a person has
        verified: see `trust`. If this fails or is interrupted, the learner is as before."""
        with closing(self.stream(dataset, ids, test, trusted)) as events:
            for _ in shown(events, self._trainer) if progress else events:
                pass
        return self

    def stream(
        self,
        dataset: Data,
        ids: Rows | None = None,
        test: Data | None = None,
        trusted: Data | None = None,
    ) -> Generator[Event, None, None]:
        """Learn as `learn` does, giving each event as it happens. A loop that is left before the
        TaskFinished event gives the task up: the learner is then as before."""
        self._check_idle("learn")  # before the data moves any random stream
        trainable(self.model)  # there may be none left since the last task
        dtype = self._dtype
        if ids is not None:
            check_order(dataset)
        before = self._random.state()
        try:
            with self._random.used():  # a loader may shuffle
                found = read(dataset, dtype)
                tests = None if test is None else read(test, dtype, "test dataset")
                verified = None if trusted is None else read(trusted, dtype, "trusted examples")
        except BaseException:
            self._random.restore(before)
            raise
        return self._events(Arriving(found, ids, tests, verified), before)

    def trust(self, examples: Data) -> list[int]:
        """Pin examples of classes already seen, whose labels a person has verified, in the memory:
        a Dataset or a pair (inputs, labels). They count in its budget, within their class's share,
        and stay as long as it lasts. Gives their ids."""
        self._check_idle("trust")
        self._check_learned()
        found = read(examples, self._dtype, "trusted examples")
        check_trusted(found, self.classes)
        trainer, names = self._trainer, self._next_id + torch.arange(len(found.labels))
        check_arrivals(trainer.learner, found, trainer.tasks, self._learned)
        batch, last = Batch(found.inputs, found.labels, names), len(trainer.tasks) - 1
        trainer.learner.trust(batch, last, self.classes, trainer.method.column_values)
        trainer.tasks[last] = with_names(trainer.tasks[last], names, found.labels)
        self._next_id = int(names[-1]) + 1
        return [int(name) for name in names]

    def predict(self, x: Rows) -> Tensor:
        """The class of each input (n,), of those seen; a regression's outputs."""
        self._check_learned()
        said = self._said(x, self._trainer.learner.scoring())
        return answers(said, self.classes, self._parts.loss_fn is not None)

    def outputs(self, x: Rows) -> Tensor:
        """What the model says to each input (n, …), in evaluation mode, on the CPU."""
        return self._said(x)

    def score(self, dataset: Data) -> float:
        """The metric on a dataset; without one the accuracy, or a regression's mean loss."""
        if self._parts.metric is None:
            self._check_learned()
        found = read(dataset, self._dtype)
        if self._learned:
            self._parts.check_scored(found.labels, self._trainer.tasks[-1].train.labels)
        said = self._said(found.inputs, self._trainer.learner.scoring())
        return score_outputs(self._trainer.learner, self._parts, said, found.labels, self.classes)

    @property
    def classes(self) -> tuple[int, ...]:
        """All classes seen, ascending."""
        return tuple(sorted({label for task in self._trainer.tasks for label in task.classes}))

    @property
    def tasks(self) -> int:
        """How many tasks have been learned."""
        return len(self._learned)

    @property
    def memory(self) -> MemoryView:
        """A read-only dataset of what is stored, with a table to audit it."""
        return MemoryView(self._trainer.learner.memory, self._history, self._learned)

    @property
    def removed(self) -> list[Removal]:
        """The ids, moment and reason of each removal; nothing of their content."""
        return deepcopy(self._removed)

    def influence(self) -> pa.Table:
        """One row for each example that was measured or is in memory: id, label, task, mean
        stability, plasticity and fused influence (null: never measured; negative: helpful), count
        of measurements, in_memory."""
        return influence_table(self._trainer.learner.memory, self._history, self._trainer.tasks)

    def forget(
        self,
        ids: Ids | None = None,
        predicate: Callable[[InfluenceRow], bool] | None = None,
        reason: str = "",
    ) -> list[int]:
        """Remove examples, by their ids or where ``predicate(row)`` holds for a row of
        `influence()`: from the memory, from the influences, and so from every file saved from now
        on. Free slots are filled again by what comes. What the weights have learned stays learned.
        Gives the ids, which are never learned again; `removed` keeps the record."""
        self._check_idle("forget")
        if (ids is None) == (predicate is None):
            raise UserError("forget needs either ids or a predicate: give one of them.")
        if predicate is not None:
            rows = cast(list[InfluenceRow], self.influence().to_pylist())
            gone = [row["id"] for row in rows if predicate(row)]
        else:
            gone = sorted(whole_numbers(ids))
        if not isinstance(reason, str):
            raise UserError(f"the reason is a text that is kept, not {reason!r}.")
        held = set(self._trainer.learner.memory.ids.tolist())
        wanted = torch.tensor(gone, dtype=torch.long)
        self._trainer.forget(wanted)
        self._history = self._history.without(wanted)
        if gone:
            self._next_id = max(self._next_id, gone[-1] + 1)  # numbers of its own skip them
            count = sum(i in held for i in gone)
            self._removed.append(
                {"ids": gone, "when": now(), "reason": reason, "from_memory": count}
            )
        return list(gone)

    def save(self, path: str | Path) -> None:
        """Write everything but the code to one file, in one step: after `load` learning goes on
        to the same bits."""
        self._check_idle("save")
        files.write(Path(path), *to_file(self))

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        method: "type[Method] | Method | None" = None,
        loss_fn: LossFn | None = None,
        metric: Metric | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        augment: Augment | None = None,
        optimizer: MakeOptimizer | None = None,
        scheduler: MakeScheduler | None = None,
        device: str | torch.device | None = None,
    ) -> Self:
        """The learner that was saved, around a model of the same kind, whose weights are replaced.
        What was given as code (loss_fn, metric, transform, augment, optimizer, scheduler, a method
        of your own) is given again."""
        code: dict[str, Any] = {"loss_fn": loss_fn, "metric": metric, "transform": transform}
        code |= {"augment": augment, "optimizer": optimizer, "scheduler": scheduler}
        loaded = from_file(cls, Path(path), model, {**code, "method": method, "device": device})
        assert isinstance(loaded, cls)
        return loaded

    def _said(self, x: Any, scoring: Scoring | None = None) -> Tensor:
        """The model's outputs, or what the method makes of them to predict."""
        if isinstance(x, Dataset | DataLoader):
            raise UserError("this takes inputs, not a dataset: use score, or give its inputs.")
        inputs = tensor_of(x, "inputs")
        if inputs.is_floating_point():
            inputs = inputs.to(self._dtype)
        learner = self._trainer.learner
        one = learner.memory.inputs
        if one is not None and inputs.shape == one.shape[1:]:
            raise UserError("this is a single input without a batch around it: give x[None].")
        return told_outputs(learner, inputs, scoring)

    def _events(self, arriving: "Arriving", random: State) -> Generator[Event, None, None]:
        """One task from beginning to end, or not at all, with the random streams as they were
        before the data was read."""
        self._check_idle("learn")
        trainer, before = self._trainer, {**snapshot(self), "random": random}
        ledger, mode, done = trainer.learner.ledger, modes(self.model), False
        self._busy = True
        try:
            with self._random.used():
                self._open(arriving)
            if not self.model.training:
                self.model.train()
            for event in self._random.around(trainer.run()):
                if isinstance(event, RunFinished):
                    break
                if isinstance(event, TaskFinished):
                    self._close(ledger)
                    done, self._busy = True, False
                    restore_modes(mode)
                yield event
        except Diverged as error:
            raise UserError(
                f"{error.event}: try a smaller lr; the learner is as it was before this task."
            ) from error
        finally:
            self._busy = False
            if not done:
                back_to(self, before)
                restore_modes(mode)

    def _open(self, arriving: "Arriving") -> None:
        """Check what has arrived and put it at the end of the stream."""
        found, ids, test, trusted = arriving
        trainer, learner = self._trainer, self._trainer.learner
        names = ids_of(ids, len(found.labels), self._next_id)
        if ids is not None:
            check_names(names, found, trainer.tasks)
        gone = torch.tensor([i for record in self._removed for i in record["ids"]])
        kept = torch.nonzero(~torch.isin(names, gone)).flatten()
        if not len(kept):
            raise UserError("every example of the dataset was forgotten before: nothing is left.")
        found, names = Arrivals(found.inputs[kept], found.labels[kept]), names[kept]
        check_arrivals(learner, found, trainer.tasks, self._learned)
        if self._head is not None and found.are_classes and int(found.labels.max()) >= 0:
            size = max(self._head.out_features, int(found.labels.max()) + 1)
            resize_head(self._head, size, learner.optimizer, learner.streams["head"])
        check_fit(learner, found, self._recipe, self._parts.loss_fn is not None)
        if test is not None:
            self._parts.check_scored(test.labels, found.labels)
            told_outputs(learner, test.inputs[:2])
        learner.plan = plan_for(learner.plan, found.classes, trainer.tasks)
        self._next_id = max(self._next_id, int(names.max()) + 1)
        task = task_of(len(trainer.tasks), found, names, test)
        if trusted is not None:
            check_trusted(trusted, {*self.classes, *found.classes})
            check_arrivals(learner, trusted, [*trainer.tasks, task], self._learned)
            own = self._next_id + torch.arange(len(trusted.labels))
            task = replace(task, trusted=Examples.of(trusted.inputs, trusted.labels, own))
            self._next_id = int(own[-1]) + 1
        if self._recipe.selection is None:  # no memory to pin them in
            task = task.with_trusted_in_train()
        trainer.tasks.append(task)
        self._learned.append({"began": now(), "examples": len(names), "inputs": kind(found.inputs)})

    def _close(self, ledger: Ledger) -> None:
        """Keep of the task what the learner needs to know: not its inputs."""
        self._history.merge(ledger)
        self._trainer.tasks[-1] = without_inputs(self._trainer.tasks[-1])
        self._trainer.learner.current = None
        self._learned[-1]["ended"] = now()

    def _check_idle(self, what: str) -> None:
        if self._busy:
            raise UserError(
                f"cannot {what} in the middle of a task: let its stream run to the end, or close "
                "it."
            )

    def _check_learned(self) -> None:
        """Of classes nothing can be said before there are any."""
        if not self._learned and self._parts.loss_fn is None:
            raise UserError(
                "no class has been learned yet: learn a dataset first; `outputs` gives what the "
                "model says as it is."
            )

    @property
    def _dtype(self) -> torch.dtype:
        every = list(self.model.parameters())
        return next((p.dtype for p in every if p.requires_grad), every[0].dtype)


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
