"""ContinualLearner: a user's model, a method and a memory, fed one dataset after the other."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from copy import deepcopy
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from pathlib import Path
from typing import Any, Literal, Self, cast, overload
from weakref import ref

import pyarrow as pa
import torch
from torch import Tensor, nn

from metasp.engine.change import MakeDetector
from metasp.engine.randomness import OwnRandomness
from metasp.engine.stopping import PATIENCE
from metasp.errors import UserError
from metasp.events import Event
from metasp.learner import files, learning, observing, showing
from metasp.learner.data import (
    Arriving,
    Columns,
    Data,
    Removal,
    checked_patience,
    held_out_of,
    translated,
)
from metasp.learner.encoder import FrozenEncoder
from metasp.learner.from_model import (
    answers,
    build,
    outputs_or_user_error,
    score_outputs,
    trainable,
)
from metasp.learner.head import head_layer
from metasp.learner.ids import Ids, check_order, whole_numbers
from metasp.learner.judging import Audit, judged
from metasp.learner.records import Records
from metasp.learner.settings import (
    Augment,
    Change,
    MakeOptimizer,
    MakeScheduler,
    Metric,
    Parts,
    chosen,
)
from metasp.learner.stored import from_file, to_file
from metasp.learner.together import APART, given, given_inputs
from metasp.learner.view import InfluenceRow, MemoryView, influence_table
from metasp.methods import Method
from metasp.methods.context import Scoring, measured
from metasp.processes import check_alike, heard, joined
from metasp.types import LossFn, Rows


class ContinualLearner:
    """Wraps a model so that it goes on learning from new data with a fixed memory.

    ``method`` is a name (`metasp list methods`) or a `Method` of your own. ``loss_fn(outputs,
    targets)`` gives one loss per example (default: cross-entropy) and ``metric(outputs, targets)``
    a score (default: accuracy). ``transform(inputs)`` makes network inputs of raw ones (default:
    bytes become numbers from 0 to 1), ``augment(inputs, generator)`` changes them at random while
    training. ``optimizer(parameters)`` makes what takes the steps (default: SGD with the settings
    lr, momentum and weight_decay), ``scheduler(optimizer)`` what moves its learning rate, in each
    task anew. ``encoder`` is a frozen module before the model, whose features are computed once
    per example (see `FrozenEncoder`); with ``keep="features"`` the memory holds them instead of
    inputs. ``detector()`` makes what marks a new task in a stream without boundaries, such as
    `river.drift.ADWIN`: see `observe`. Further settings, such as memory, lr and epochs, are the
    fields of `metasp.learner.settings.LearnerSettings`; what is left out is as there, or as the
    method has it.

    The model is trained in place. Nothing global is seeded, and no global random stream moves:
    what a transform or module draws from torch, `random` or `numpy.random` while training comes
    from streams of the learner's own, which `seed` starts and `save` stores. Under `torchrun` all
    processes hold the same learner and share its passes: each makes the same calls.
    """

    def __init__(
        self,
        model: nn.Module,
        method: "str | type[Method] | Method" = "metasp-rehsel",
        *,
        loss_fn: LossFn | None = None,
        metric: Metric | None = None,
        transform: Change | None = None,
        augment: Augment | None = None,
        optimizer: MakeOptimizer | None = None,
        scheduler: MakeScheduler | None = None,
        encoder: "nn.Module | FrozenEncoder | None" = None,
        detector: MakeDetector | None = None,
        device: str | torch.device | None = None,
        **settings: Any,
    ) -> None:
        self.model = model
        self.method, self._recipe, self.settings = chosen(method, settings)
        before = FrozenEncoder.of(encoder)
        code = (loss_fn, metric, transform, augment, optimizer, scheduler, before, detector)
        self._parts = Parts(*code)
        self._ranks = joined()
        about = (self.method, self._recipe, self.settings, self._parts)
        self._trainer = build(model, *about, device, self._ranks)
        self._head = head_layer(model, self.settings.head) if self.settings.head else None
        learner = self._trainer.learner
        self._random = OwnRandomness(learner.streams, learner.device)
        self._history = measured()
        self._learned: list[dict[str, Any]] = []  # each task: when, how many
        self._removed: list[Removal] = []
        self._records = Records()
        self._names: list[str] = []  # of the classes, where labels are text
        self._audit = Audit()
        self._next_id = 0
        self._busy = False
        self._stream: ref[Generator[Event, None, None]] | None = None
        self._named = isinstance(method, str)

    def learn(
        self,
        dataset: Data,
        ids: Rows | None = None,
        test: Data | None = None,
        progress: bool = True,
        trusted: Data | None = None,
        validation: Data | float | None = None,
        patience: int = PATIENCE,
    ) -> Self:
        """Learn a new task: a torch Dataset or DataLoader, a pair (inputs, labels), a dictionary of
        columns with the labels inside, or an iterator of examples or batches. Inputs are a tensor,
        or a tuple or dictionary of tensors. Classes may be new or known, numbers or names. ``ids``
        are whole numbers that name the examples for life (default: running numbers); those that
        were forgotten are left out. With a ``test`` dataset the task is scored before and after.
        ``trusted`` are further examples whose labels a person has verified: see `trust`.
        ``validation`` is a dataset that is not trained on, or the share of this one that is held
        out: its loss is taken after each epoch, the weights of the epoch where it was lowest are
        kept, and ``patience`` epochs without a lower one end a phase of the task. If this fails or
        is interrupted, the learner is as before."""
        stream = self.stream(dataset, ids, test, trusted, validation, patience)
        with closing(stream) as events:
            told = progress and (self._ranks is None or self._ranks.rank == 0)
            for _ in learning.shown(events, self._trainer) if told else events:
                pass
        return self

    def stream(
        self,
        dataset: Data,
        ids: Rows | None = None,
        test: Data | None = None,
        trusted: Data | None = None,
        validation: Data | float | None = None,
        patience: int = PATIENCE,
    ) -> Generator[Event, None, None]:
        """Learn as `learn` does, giving each event as it happens. A loop that is left before the
        TaskFinished event gives the task up: the learner is then as before. `finish` ends it."""
        self._check_idle("learn")  # before the data moves any random stream
        trainable(self.model)  # there may be none left since the last task
        if ids is not None:
            check_order(dataset)
        before = self._random.state()
        try:
            with self._random.used():  # a loader may shuffle
                found = given(self, dataset)
                tests = None if test is None else given(self, test, "test dataset")
                verified = None if trusted is None else given(self, trusted, "trusted examples")
                held = held_out_of(validation, partial(given, self))
        except BaseException:
            self._random.restore(before)
            raise
        self._trainer.stopping.patience = checked_patience(patience)
        events = learning.task_events(self, Arriving(found, ids, tests, verified, held), before)
        self._stream = ref(events)
        return events

    def observe(self, batch: Data, ids: Rows | None = None) -> list[Event]:
        """Take one step on a batch of a stream that tells no tasks, and let the memory decide about
        it. Classes may come at any time. Gives what happened. All batches since the first are one
        open task, of which the newest `window` examples stand for what is new; it ends with
        `finish`, or when a ``detector`` sees the loss rise, which begins another with the next
        batch. Between two batches the learner can be used, saved and loaded as ever; a batch that
        is refused changes nothing."""
        self._check_idle("observe")
        trainable(self.model)
        return observing.observe_batch(self, given(self, batch, "batch"), ids)

    def finish(self) -> list[Event]:
        """End the task that a `stream` is in, before its last epoch, or the open one of `observe`:
        properly. The memory chooses, tests are taken, and with a validation the best weights are
        kept. Gives the events that were left; the stream has no further ones."""
        if self._trainer.open and not self._busy:
            return observing.finish(self)
        events = self._stream() if self._stream is not None else None
        if not self._busy or events is None or getgeneratorstate(events) == GEN_RUNNING:
            raise UserError(
                "no task is under way: finish ends one that `observe` opened, or one between two "
                "events of its stream."
            )
        self._trainer.ending = True
        return list(events)

    def trust(self, examples: Data) -> list[int]:
        """Pin examples of classes already seen, whose labels a person has verified, in the memory:
        a Dataset or a pair (inputs, labels). They count in its budget, within their class's share,
        and stay as long as it lasts. Gives their ids."""
        self._check_idle("trust")
        self._check_learned()
        return learning.pin(self, given(self, examples, "trusted examples"))

    def judge(self, examples: Data, ids: Rows | None = None) -> pa.Table:
        """What the model and the memory as they stand think of examples before they are learned.
        One row each: id, label, its influence on stability and plasticity (below 0 helps), the
        probability that its label is wrong (null: nothing in memory stands for its class), and the
        class that it looks like. Nothing changes but the log that `audit` gives."""
        self._check_idle("judge")
        self._check_learned()
        return judged(self, given(self, examples, "examples to judge"), ids)

    def audit(self) -> pa.Table:
        """The log of what was thought and done of examples, the newest last: id, task, what
        (judged, kept, learned, weighted down, dropped), the probability that the label is wrong and
        the mean weight relative to an even one. It holds ids and nothing else of an example."""
        return self._audit.table()

    @overload
    def predict(self, x: Columns, names: Literal[False] = False) -> Tensor: ...

    @overload
    def predict(self, x: Columns, names: Literal[True]) -> list[str]: ...

    def predict(self, x: Columns, names: bool = False) -> Tensor | list[str]:
        """The class of each input (n,), of those seen; a regression's outputs. With ``names`` the
        names of the classes, where labels are text."""
        self._check_learned()
        if names and not self._names:
            raise UserError("the classes were learned as numbers: leave names out.")
        said = self._said(x, self._trainer.learner.scoring())
        found = answers(said, self.classes, self._parts.loss_fn is not None)
        return [self._names[number] for number in found.tolist()] if names else found

    def outputs(self, x: Columns) -> Tensor:
        """What the model says to each input (n, …), in evaluation mode, on the CPU."""
        return self._said(x)

    def score(self, dataset: Data) -> float:
        """The metric on a dataset; without one the accuracy, or a regression's mean loss."""
        if self._parts.metric is None:
            self._check_learned()
        found = translated(given(self, dataset), self._names)
        if self._learned:
            self._parts.check_scored(found.labels, self._trainer.tasks[-1].train.labels)
        if self._parts.encoder is not None:
            self._parts.encoder.store(found.inputs)
        said = self._said(found.inputs, self._trainer.learner.scoring())
        return score_outputs(self._trainer.learner, self._parts, said, found.labels, self.classes)

    @property
    def classes(self) -> tuple[int, ...]:
        """All classes seen, ascending."""
        return tuple(sorted({label for task in self._trainer.tasks for label in task.classes}))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class by its number, where labels are text; else none."""
        return tuple(self._names)

    @property
    def tasks(self) -> int:
        """How many tasks have been learned, with the one that is open."""
        return len(self._learned)

    @property
    def batches(self) -> int:
        """How many batches have been observed: who resumes goes on after so many."""
        return self._trainer.position.observed

    @property
    def memory(self) -> MemoryView:
        """A read-only dataset of what is stored, with a table to audit it."""
        held = self._trainer.learner.memory
        return MemoryView(held, observing.all_influence(self), self._learned, self._names)

    @property
    def removed(self) -> list[Removal]:
        """The ids, moment and reason of each removal; nothing of their content."""
        return deepcopy(self._removed)

    def influence(self) -> pa.Table:
        """One row for each example that was measured or is in memory: id, label, task, mean
        stability, plasticity and fused influence (null: never measured; negative: helpful), count
        of measurements, in_memory."""
        held, tasks = self._trainer.learner.memory, self._trainer.tasks
        return influence_table(held, observing.all_influence(self), tasks, self._names)

    def suspects(self, by: str | None = None, top: int | None = None) -> pa.Table:
        """The examples whose labels look wrong, the most suspect first: as many as are expected to
        be wrong, or ``top``. ``by`` is a way to tell (``odds``, ``score``, ``margin``, ``loss``,
        ``influence``, ``both``); unless given, the first of them that is known. Each is a column,
        beside id, task, label and the class that the model gave last."""
        return showing.suspects_table(self, by, top)

    def explore(
        self, page: str | Path, words: Mapping[int, str] | None = None, limit: int = 10_000
    ) -> Path:
        """Write the explorer's page: which examples help the model remember and which help it
        learn, and what the memory kept, with pictures or numbers of what it holds. ``words`` are
        texts of examples, by id, to show instead; at most ``limit`` examples are shown."""
        content = showing.page(self, words, limit)
        heard(self._ranks, lambda: showing.write_page(Path(page), content))
        return Path(page)

    def report(self) -> str:
        """What was learned, task by task, with scores where there were tests, as Markdown."""
        return showing.report_text(self)

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
        return learning.remove(self, gone, reason)

    def save(self, path: str | Path) -> None:
        """Write everything but the code to one file, in one step: after `load` learning goes on
        to the same bits."""
        self._check_idle("save")
        tensors, about = to_file(self)
        if self._ranks is not None:
            check_alike(self._ranks, tensors, APART)
        heard(self._ranks, lambda: files.write(Path(path), tensors, about))

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        method: "type[Method] | Method | None" = None,
        loss_fn: LossFn | None = None,
        metric: Metric | None = None,
        transform: Change | None = None,
        augment: Augment | None = None,
        optimizer: MakeOptimizer | None = None,
        scheduler: MakeScheduler | None = None,
        encoder: "nn.Module | FrozenEncoder | None" = None,
        detector: MakeDetector | None = None,
        device: str | torch.device | None = None,
    ) -> Self:
        """The learner that was saved, around a model of the same kind, whose weights are replaced.
        What was given as code (loss_fn, metric, transform, augment, optimizer, scheduler,
        encoder, detector, a method of your own) is given again."""
        code: dict[str, Any] = {"loss_fn": loss_fn, "metric": metric, "transform": transform}
        code |= {"augment": augment, "optimizer": optimizer, "scheduler": scheduler}
        code |= {"encoder": encoder, "detector": detector}
        loaded = from_file(cls, Path(path), model, {**code, "method": method, "device": device})
        assert isinstance(loaded, cls)
        return loaded

    def _said(self, x: Any, scoring: Scoring | None = None) -> Tensor:
        """The model's outputs, or what the method makes of them to predict."""
        learner = self._trainer.learner
        inputs = given_inputs(self, x)
        return outputs_or_user_error(learner, inputs, scoring, self._parts.encoder)

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
                "no class has been learned yet: learn a dataset first, or call `outputs` for what "
                "the model returns now."
            )
