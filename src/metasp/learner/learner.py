"""ContinualLearner: a user's model, a method and a memory, fed one dataset after the other."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing
from inspect import GEN_RUNNING, getgeneratorstate
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self
from weakref import ref

import pyarrow as pa
import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.events import Event
from metasp.learner import file_format, views
from metasp.learner.build import (
    Augment,
    Change,
    LearnerSettings,
    MakeOptimizer,
    MakeScheduler,
    UserCode,
    build_trainer,
    check_trainable,
    choose_method,
)
from metasp.learner.encoder import FrozenEncoder
from metasp.learner.history import History
from metasp.learner.inputs import (
    Columns,
    Data,
    Ids,
    Labelled,
    as_ids,
    check_order,
)
from metasp.learner.intake import Intake, TaskData
from metasp.learner.outputs import Metric, answers
from metasp.learner.session import Session
from metasp.learner.views import MemoryView
from metasp.methods import Method
from metasp.processes import heard, joined
from metasp.train.early_stopping import PATIENCE
from metasp.train.online import WINDOW, MakeDetector
from metasp.types import LossFn, Rows


class ContinualLearner:
    """Wraps a model so that it goes on learning from new data with a fixed memory.

    ``method`` is a name (`metasp list methods`) or a `Method` class of your own. ``loss_fn(outputs,
    targets)`` gives one loss per example (default: cross-entropy) and ``metric(outputs, targets)``
    a score (default: accuracy). ``transform(inputs)`` makes network inputs of raw ones (default:
    bytes become numbers from 0 to 1), ``augment(inputs, generator)`` changes them at random while
    training. ``optimizer(parameters)`` makes what takes the steps (default: SGD with ``lr``,
    ``momentum`` and ``weight_decay``), ``scheduler(optimizer)`` what moves its learning rate, in
    each task anew by ``scheduler_step`` ("epoch" or "step"). ``encoder`` is a frozen module before
    the model, whose features are computed once per example (see `FrozenEncoder`): the memory holds
    them, and with ``keep="inputs"`` the inputs too. ``detector()`` makes what marks a new task in a
    stream without boundaries, such as `river.drift.ADWIN`, and the newest ``window`` examples stand
    for what is new in it: see `observe`. ``memory`` examples are held, ``head`` is the linear layer
    that grows with new classes, and further keywords are the method's own settings.

    The model is trained in place. Nothing global is seeded, and no global random stream moves:
    what a transform or module draws from torch, `random` or `numpy.random` while training comes
    from streams of the learner's own, which ``seed`` starts and `save` stores.

    `predict`, `outputs`, `score`, `judge` and `save` may be called from other threads while one
    learns: they see the model after a whole step, and change nothing. Under `torchrun` all
    processes share the learner's passes: each makes the same calls, from one thread.
    """

    def __init__(
        self,
        model: nn.Module,
        method: "str | type[Method]" = "metasp-rehsel",
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
        memory: int = 500,
        lr: float | None = None,
        epochs: int = 10,
        batch_size: int = 32,
        memory_batch: int = 32,
        momentum: float | None = None,
        weight_decay: float | None = None,
        selection: str | None = None,
        rehearse_last: int | None = None,
        influence: Literal["none", "metasp", "robust"] = "none",
        seed: int = 1231,
        precision: Literal["fp32", "bf16", "fp64"] = "fp32",
        compile: bool = False,
        clip_norm: float | None = None,
        head: str | None = None,
        scheduler_step: Literal["epoch", "step"] = "epoch",
        window: int = WINDOW,
        keep: Literal["inputs", "features"] = "features",
        settings: Mapping[str, object] | None = None,
        **of_method: object,
    ) -> None:
        numbers = LearnerSettings(
            memory=memory, lr=lr, epochs=epochs, batch_size=batch_size, memory_batch=memory_batch,
            momentum=momentum, weight_decay=weight_decay, selection=selection, seed=seed,
            rehearse_last=rehearse_last, influence=influence, precision=precision, compile=compile,
            clip_norm=clip_norm, head=head, scheduler_step=scheduler_step, window=window, keep=keep,
            settings={**(settings or {}), **of_method},
        )  # fmt: skip
        self.model = model
        self.method, recipe, self.settings = choose_method(method, numbers)
        code = UserCode(
            loss_fn=loss_fn, metric=metric, transform=transform, augment=augment,
            optimizer=optimizer, scheduler=scheduler, encoder=FrozenEncoder.of(encoder),
            detector=detector, method=None if isinstance(method, str) else recipe.kind,
        )  # fmt: skip
        chosen, ranks = (self.method, recipe, self.settings, code), joined()
        self._trainer = build_trainer(model, *chosen, device, ranks)
        self._session = Session(Intake(self._trainer, History(), *chosen), ranks)
        self._stream: ref[Generator[Event, None, None]] | None = None

    def learn(
        self,
        dataset: Data,
        ids: Rows | None = None,
        test: Data | None = None,
        progress: bool = True,
        trusted: Data | None = None,
        validation: Data | float | None = None,
        patience: int = PATIENCE,
        snapshots: str | Path | None = None,
        snapshot_seconds: float = 60.0,
    ) -> Self:
        """Learn a new task: a torch Dataset or DataLoader, a pair (inputs, labels), a dictionary of
        columns with the labels inside, or an iterator of examples or batches. Inputs are a tensor,
        or a tuple or dictionary of tensors. Classes may be new or known, numbers or names. ``ids``
        are whole numbers that name the examples for life (default: running numbers); those that
        were forgotten are left out. With a ``test`` dataset the task is scored before and after.
        ``trusted`` are further examples whose labels a person has verified: see `trust`.
        ``validation`` is a dataset that is not trained on, or the share of this one that is held
        out: its loss is taken after each epoch, the weights of the epoch where it was lowest are
        kept, and ``patience`` epochs without a lower one end a phase of the task. ``snapshots`` is
        a file to which the task under way is written every ``snapshot_seconds``: after a kill, the
        same call on the learner as it was before goes on from there, to the same bits. If this
        fails or is interrupted, the learner is as before."""
        ranks = self._session.ranks
        shown = progress and (ranks is None or ranks.rank == 0)
        data = dataset, ids, test, trusted, validation, patience
        with closing(self.stream(*data, snapshots, snapshot_seconds)) as events:
            for _ in views.with_progress_bar(events, self._trainer) if shown else events:
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
        snapshots: str | Path | None = None,
        snapshot_seconds: float = 60.0,
    ) -> Generator[Event, None, None]:
        """Learn as `learn` does, and yield each event as it happens. A loop that is left before the
        TaskFinished event gives the task up: the learner is then as before. `finish` ends it."""
        session = self._session
        session.check_idle("learn")  # before data moves a random stream
        check_trainable(self.model)  # there may be none left since the last task
        if ids is not None:
            check_order(dataset)
        with session.reading() as random:
            train = session.read(dataset)
            tests = None if test is None else session.read(test, "test dataset")
            verified = None if trusted is None else session.read(trusted, "verified examples")
            held_out: Labelled | float | None = None
            if isinstance(validation, Real):
                held_out = float(validation)
            elif validation is not None:
                held_out = session.read(validation, "validation dataset")
        if isinstance(held_out, float) and not 0 < held_out < 1:
            raise UserError(
                f"validation is {held_out:g}: give a share between 0 and 1 of the dataset, or a "
                "dataset of its own."
            )
        if patience < 1:
            raise UserError(f"patience is {patience!r}: give a number of epochs, 1 or more.")
        self._trainer.stopping.patience = patience
        data = TaskData(train, ids, tests, verified, held_out)
        events = session.run(data, random, session.snapshots(snapshots, snapshot_seconds))
        self._stream = ref(events)
        return events

    def observe(self, batch: Data, ids: Rows | None = None) -> list[Event]:
        """Take one step on a batch of a stream that tells no tasks, and let the memory decide about
        it. Classes may come at any time. Returns what happened; a step's numbers hold the accuracy
        of the answers before each example was learned, over all so far (`prequential`) and over the
        newest `window` (`prequential_newest`). All batches since the first are one open task, of
        which the newest `window` examples stand for what is new; it ends with `finish`, or when a
        ``detector`` sees the loss rise, which begins another with the next batch. Between two
        batches the learner can be used, saved and loaded as ever; a batch that is refused changes
        nothing."""
        return self._session.observe(self._session.read(batch, "batch"), ids)

    def finish(self) -> list[Event]:
        """End the task that a `stream` is in, or the open one of `observe`, as after its last
        epoch: the memory chooses and tests are taken. Returns the events that were left."""
        busy = self._session.before is not None
        if self._trainer.open and not busy:
            return self._session.finish()
        events = self._stream() if self._stream is not None else None
        if not busy or events is None or getgeneratorstate(events) == GEN_RUNNING:
            raise UserError(
                "no task is under way: finish ends one that `observe` opened, or one between two "
                "events of its stream."
            )
        self._trainer.ending = True
        return list(events)

    def trust(self, examples: Data) -> list[Any]:
        """Pin examples of classes already seen, whose labels a person has verified, in the memory:
        a Dataset or a pair (inputs, labels). They count in its budget, within their class's share,
        and stay as long as it lasts. Returns their ids."""
        return self._session.trust(self._session.read(examples, "verified examples"))

    def judge(self, examples: Data, ids: Rows | None = None) -> pa.Table:
        """Judge examples before they are learned, by model and memory as they stand. One row each:
        id, label, its influence on stability and plasticity (below 0 helps), the probability that
        its label is wrong (null: no such class in memory), and the class that it looks like."""
        self._session.check_learned()
        data = self._session.read(examples, "examples to judge")
        if not data.are_classes:
            raise UserError("only labels that are classes can be judged: give numbers or names.")
        shown = [None] * len(data.labels) if ids is None else as_ids(ids, len(data.labels))
        verdicts, data = self._session.judge(data)
        return views.verdict_table(verdicts, data.labels, shown, data.names)

    def predict(self, x: Columns, names: bool = False) -> Any:
        """Return the class of each input (n,), of those seen; a regression's outputs. With
        ``names`` a list of the names of the classes, where labels are text."""
        with self._session.turn:
            self._session.check_learned()
            if names and not self.class_names:
                raise UserError("the classes were learned as numbers: leave names out.")
            outputs = self._session.outputs(self._session.read_inputs(x), scored=True)
            classes = answers(outputs, self.classes, self._session.code.loss_fn)
            return [self.class_names[c] for c in classes.tolist()] if names else classes

    def predict_proba(self, x: Columns) -> Tensor:
        """Return the probability of each class that was seen for each input, (n, classes): the
        softmax of what the method predicts by, in the order of `classes`."""
        with self._session.turn:
            self._session.check_learned()
            if not self.classes:
                raise UserError("the labels are no classes, which alone have probabilities.")
            outputs = self._session.outputs(self._session.read_inputs(x), scored=True)
            return outputs[:, list(self.classes)].softmax(1)

    def outputs(self, x: Columns) -> Tensor:
        """Return the model's outputs for each input (n, …), in evaluation mode, on the CPU."""
        with self._session.turn:
            return self._session.outputs(self._session.read_inputs(x), scored=False)

    def score(self, dataset: Data) -> float:
        """Return the metric on a dataset; without one the accuracy, or a regression's mean loss."""
        return self._session.score(self._session.read(dataset))

    @property
    def classes(self) -> tuple[int, ...]:
        """Return all classes seen, ascending."""
        return self._session.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the name of each class by its number, where labels are text; else none."""
        return self._session.history.class_names

    @property
    def tasks(self) -> int:
        """Return how many tasks have been learned, with the one that is open."""
        return len(self._session.history.learned)

    @property
    def batches(self) -> int:
        """Return how many batches have been observed."""
        return self._trainer.position.observed

    def paused(self) -> AbstractContextManager[None]:
        """Hold the learner between two steps, for calls that belong together."""
        return self._session.turn

    @property
    def version(self) -> int:
        """Return how often the learner has changed: by a task, a batch, or examples that were
        trusted or forgotten. A file has the version that it was saved at."""
        return self._session.history.version

    @property
    def memory(self) -> MemoryView:
        """Return a read-only dataset of what is stored, with a table to audit it."""
        return MemoryView(self._session)

    @property
    def removed(self) -> list[dict[str, Any]]:
        """Return ids, moment and reason of each removal; nothing of their content."""
        history = self._session.history
        return [{**record, "ids": history.ids.shown(record["ids"])} for record in history.removed]

    def influence(self) -> pa.Table:
        """Return one row for each example that was measured or is in memory: id, label, task, mean
        stability, plasticity and fused influence (null: never measured; negative: helpful), count
        of measurements, in_memory."""
        with self._session.turn:
            return views.influence_table(self._session)

    def suspects(self, by: str | None = None, top: int | None = None) -> pa.Table:
        """Return the examples whose labels look wrong, the most suspect first: as many as are
        expected to be wrong, or ``top``. ``by`` is a way to tell (``odds``, ``score``, ``margin``,
        ``loss``, ``influence``, ``both``); unless given, the first of them that is known. Each is a
        column, beside id, task, label and the class that the model gave last."""
        with self._session.turn:
            return views.suspects_table(self._session.history, by, top)

    def explore(
        self, page: str | Path, words: Mapping[Any, str] | None = None, limit: int = 10_000
    ) -> Path:
        """Write the explorer's page: which examples help the model remember and which help it
        learn, and what the memory holds, with pictures or numbers. ``words`` are texts of examples,
        by id, to show instead; at most ``limit`` examples are shown."""
        with self._session.turn:
            content = views.explorer_page(self._session, words, limit)
        heard(self._session.ranks, lambda: file_format.write(Path(page), content))
        return Path(page)

    def report(self) -> str:
        """Return what was learned, task by task, with scores of tests, as Markdown."""
        with self._session.turn:
            return views.report_text(self._session)

    def forget(
        self,
        ids: Ids | None = None,
        predicate: Callable[[dict[str, Any]], bool] | None = None,
        reason: str = "",
    ) -> list[Any]:
        """Remove examples, by their ids or where ``predicate(row)`` holds for a row of
        `influence()`: from the memory, from the influences, and so from every file saved from now
        on. Free slots are filled again by what comes. What the weights have learned stays learned.
        Returns the ids, which are never learned again; `removed` keeps the record."""
        if (ids is None) == (predicate is None):
            raise UserError("forget needs either ids or a predicate: give one of them.")
        with self._session.turn:
            if predicate is not None:
                ids = [row["id"] for row in self.influence().to_pylist() if predicate(row)]
            return self._session.forget(as_ids(ids), reason)

    def save(self, path: str | Path) -> None:
        """Write everything but the code to one file, in one step: after `load` learning goes on
        to the same bits. In the middle of a task of `learn` it is the learner as it was before the
        task."""
        session = self._session
        with session.turn:
            content = session.state.packed(session.before, session.ranks)
        heard(session.ranks, lambda: file_format.write(Path(path), content))

    def roll_back(self, path: str | Path) -> Self:
        """Return to a version of this learner that was saved. What was forgotten since then stays
        forgotten."""
        path = Path(path)
        content = heard(self._session.ranks, lambda: file_format.read(path))
        self._session.roll_back(path, *file_format.parse(content, path))
        return self

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        method: type[Method] | None = None,
        device: str | torch.device | None = None,
        **code: Any,
    ) -> Self:
        """Return the learner that was saved, around a model of the same kind, whose weights are
        replaced. What was given as code (loss_fn, metric, transform, augment, optimizer, scheduler,
        encoder, detector, a method of your own) is given again."""
        path = Path(path)
        tensors, about = file_format.parse(heard(joined(), lambda: file_format.read(path)), path)
        file_format.check_code(path, about, {**code, "method": method})
        learner = cls(model, method or about["method"], device=device, **code, **about["settings"])
        learner._session.state.load(path, tensors, about)
        return learner
