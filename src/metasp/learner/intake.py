"""Intake of a learner: examples that come in are checked, encoded, named, and made a task."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from metasp import trees
from metasp.data.verified import held_out
from metasp.errors import BATCHNORM_NEEDS_TWO, UserError
from metasp.influence.checks import enough_values
from metasp.learner.build import LearnerSettings, UserCode
from metasp.learner.head import head_layer, resize_head
from metasp.learner.history import History
from metasp.learner.inputs import Labelled, as_ids, renumbered
from metasp.learner.outputs import first_line, model_outputs
from metasp.memory.rehsel import CLUSTERING
from metasp.methods import Recipe
from metasp.train.from_spec import check_stopping
from metasp.train.trainer import Trainer
from metasp.trees import Tree, kind
from metasp.types import Examples, Task


class TaskData(NamedTuple):
    """Data of one task as they were read; `validation` may be the share of `train` to hold out."""

    train: Labelled
    ids: Any
    test: Labelled | None
    trusted: Labelled | None
    validation: Labelled | float | None


class Incoming(NamedTuple):
    """Examples that can be learned, the numbers (n,) of their ids, and the ids as the user has
    given them, None where they are running numbers."""

    data: Labelled
    numbers: Tensor
    ids: "list[int] | list[str] | None"


class Intake:
    """Decides what of the examples that come in can be learned, by this trainer and after this
    history, and lets the head grow with their classes."""

    def __init__(
        self,
        trainer: Trainer,
        history: History,
        method: str,
        recipe: Recipe,
        settings: LearnerSettings,
        code: UserCode,
    ) -> None:
        self.trainer, self.history, self.method = trainer, history, method
        self.recipe, self.settings, self.code = recipe, settings, code
        self.context = trainer.learner
        self.head = head_layer(self.context.model, settings.head) if settings.head else None

    @property
    def head_size(self) -> int:
        """Return how many outputs the head has that grows; 0: none grows."""
        return 0 if self.head is None else self.head.out_features

    def resize_head(self, size: int) -> None:
        if self.head is not None and size:
            resize_head(self.head, size, self.context.optimizer, self.context.streams["head"])

    def encoded(self, data: Labelled) -> Labelled:
        """Return what the learner goes on with of examples: those as they are, the encoder's
        features of them, or both."""
        if self.code.encoder is None:
            return data
        features = self.code.encoder(data.inputs)
        if self.settings.keep == "features":
            return data._replace(inputs=features)
        return data._replace(inputs={"features": features, "raw": data.inputs})

    def admit(self, data: Labelled, ids: Any) -> Incoming:
        """Return those of the examples that were not forgotten, as the memory will hold them, and
        their ids. Nothing of the learner changes."""
        if self.trainer.tasks:
            data = renumbered(data, self.history.class_names)
        chosen = None if ids is None else as_ids(ids, len(data.labels))
        numbers = self.history.ids.numbered(chosen, len(data.labels))
        if chosen is not None and data.are_classes:
            self._check_ids(numbers, data, chosen)
        left = torch.nonzero(~torch.isin(numbers, torch.tensor(self.history.forgotten))).flatten()
        data, numbers = data.at(left), numbers[left]
        if len(left):
            data = self.encoded(data)
            self.check_follows(data)
        return Incoming(data, numbers, chosen and [chosen[row] for row in left.tolist()])

    def check_follows(self, data: Labelled) -> None:
        """Raise if examples are not of the kind that the learner has had before."""
        before: list[tuple[str, Tree, str]] = []
        if self.trainer.tasks:
            before.append(("labels", data.labels, kind(self.trainer.tasks[-1].train.labels)))
        if self.context.memory.inputs is not None and self.history.learned:
            # As the last task had them, for a memory may hold bytes as floats.
            before.append(("inputs", data.inputs, self.history.learned[-1]["inputs"]))
        for name, rows, kind_before in before:
            if kind(rows) != kind_before:
                raise UserError(
                    f"the {name} are {kind(rows)} and were {kind_before} before: a learner keeps "
                    "to one kind, so bring them to one shape and type."
                )

    def fit(self, data: Labelled) -> None:
        """Give the head an output for each class that has come, and check that all fits; where it
        does not, the head is as before."""
        size, stream = self.head_size, self.context.streams["head"]
        before = stream.get_state()
        try:
            if data.are_classes:
                self.resize_head(max(size, int(data.labels.max()) + 1))
            self._check_method(data)
            self._check_model(data)
        except UserError:
            self.resize_head(size)
            stream.set_state(before)
            raise

    def enter(self, incoming: Incoming) -> None:
        """Know the classes and ids of examples that are about to be learned."""
        closed = self.trainer.tasks[:-1] if self.trainer.open else self.trainer.tasks
        self.history.class_names = incoming.data.names
        self.history.ids.enter(incoming.ids, incoming.numbers)
        if classes_of(closed) & {*incoming.data.classes}:
            self.context.plan = replace(self.context.plan, shared_classes=True)

    def make_task(self, task_data: TaskData) -> Task:
        """Return the next task of the stream; the head has grown for it and the history knows of
        it."""
        tasks = self.trainer.tasks
        if self.code.encoder is not None:
            self.code.encoder.check_unchanged()
        incoming = self.admit(task_data.train, task_data.ids)
        data, names = incoming.data, incoming.numbers
        if not len(names):
            raise UserError("every example of the dataset was forgotten before: nothing is left.")
        self.fit(data)
        test = data.no_examples()
        if task_data.test is not None:
            test = self._to_compare(task_data.test, data).examples()
        data, names, held_out_examples = self._split(data, names, task_data.validation)
        self.enter(incoming)
        train = data.examples(names)
        task = Task(len(tasks), data.classes, train, test, validation=held_out_examples)
        self.history.begin_task(kind(data.inputs), len(names))
        if isinstance(task_data.validation, float):
            self.history.learned[-1]["held_out"] = len(incoming.numbers) - len(names)
        if task_data.trusted is not None:
            task = replace(task, trusted=self.verified(task_data.trusted, [*tasks, task]))
        if self.recipe.selection is None and not self.recipe.kind.keeps_verified:
            task = task.with_trusted_in_train()
        return task

    def verified(self, data: Labelled, tasks: Sequence[Task]) -> Examples:
        """Return examples whose labels a person has verified, under ids of their own."""
        if self.trainer.tasks or self.history.class_names:
            data = renumbered(data, self.history.class_names)
        self._check_classes(data, tasks, self.history.class_names, "verified examples")
        data = self.encoded(data)
        self.check_follows(data)
        numbers = self.history.ids.numbered(None, len(data.labels))
        self.history.ids.enter(None, numbers)
        return data.examples(numbers)

    def check_scored(self, labels: Tensor, learned: Tensor) -> None:
        """Raise if labels cannot be compared with those that were learned; a user's metric may take
        any."""
        numbers = self.code.loss_fn is None and labels.is_floating_point()  # where classes are due
        alike = labels.shape[1:] == learned.shape[1:] and not numbers
        if self.code.metric is None and not alike:
            raise UserError(
                f"the labels to score against are {kind(labels)} and those learned "
                f"{kind(learned)}: bring them to one kind."
            )

    def check_online(self) -> None:
        """Raise if this cannot learn from a stream without boundaries, and name what can."""
        context, selection = self.context, self.context.selection
        if "boundaries" in self.recipe.kind.needs:
            raise UserError(
                f"{self.method} must know where a task ends, and a stream does not tell: use er, "
                "derpp, er-ace, mir, gss, gmed or metasp, or learn whole tasks."
            )
        if context.weigh is not None and context.weigh.judges:
            raise UserError(
                "influence robust judges a whole task at once, and a stream has none: use "
                "influence metasp, or learn whole tasks."
            )
        if self.recipe.selection is not None and selection.at != "step":
            raise UserError(
                f"{self.method} chooses what to keep at a task's end, and a stream has none: pass "
                "selection='reservoir', 'greedy' (balanced by class) or 'ring', or learn whole "
                "tasks."
            )
        if self.code.scheduler is not None and self.settings.scheduler_step != "step":
            raise UserError(
                "the scheduler moves at the end of an epoch, and a stream has none: pass "
                "scheduler_step='step'."
            )

    def check_alone(self, inputs: Tree) -> None:
        """Raise if the model cannot be trained on one example: batch normalisation cannot."""
        trial = deepcopy(self.context.model).eval()
        normalising = [module for module in trial.modules() if isinstance(module, _BatchNorm)]
        for module in normalising:
            module.train()
        if normalising:
            with torch.no_grad(), enough_values(BATCHNORM_NEEDS_TWO):
                rows = trees.each(lambda t: t.to(self.context.device), inputs)
                trees.call(trial, self.context.transform(rows))

    def _to_compare(self, data: Labelled, learned: Labelled) -> Labelled:
        """Return further examples, to test or validate by, under a task's numbers of classes."""
        data = self.encoded(renumbered(data, learned.names))
        self.check_scored(data.labels, learned.labels)
        model_outputs(self.context, trees.rows(data.inputs, slice(2)))
        return data

    def _split(
        self, data: Labelled, names: Tensor, validation: Labelled | float | None
    ) -> tuple[Labelled, Tensor, Examples | None]:
        """Return what to learn from, its ids, and the examples by which learning stops."""
        if validation is None:
            return data, names, None
        check_stopping(self.method, self.recipe)
        if isinstance(validation, float):
            rows = held_out(data.labels, validation, self.context.streams["held-out"])
            rest = torch.nonzero(~torch.isin(torch.arange(len(names)), rows)).flatten()
            return data.at(rest), names[rest], data.at(rows).examples(names[rows])
        validation = self._to_compare(validation, data)
        if data.are_classes:
            this = Task(0, data.classes, data.no_examples(), data.no_examples())
            tasks = [*self.trainer.tasks, this]
            self._check_classes(validation, tasks, data.names, "validation dataset")
        return data, names, validation.examples()

    def _check_ids(self, numbers: Tensor, data: Labelled, ids: list[Any]) -> None:
        """Raise if an id was given to an example of another class before: it cannot be the same."""
        before: dict[int, int] = {}
        for task in self.trainer.tasks:
            if task.classes:
                before.update(zip(task.train.ids.tolist(), task.train.labels.tolist()))
        for number, label, name in zip(numbers.tolist(), data.labels.tolist(), ids):
            if before.get(number, label) != label:
                raise UserError(
                    f"id {name!r} was given to an example of class {before[number]} before and now "
                    f"to one of class {label}: ids name examples for life; leave ids out for "
                    "running numbers."
                )

    def _check_classes(
        self, data: Labelled, tasks: Sequence[Task], names: Sequence[str], what: str
    ) -> None:
        """Raise if further examples have classes that no task has had."""
        classes = classes_of(tasks)
        strange = sorted({*data.classes} - classes)
        if strange or not data.are_classes:
            allowed = ", ".join(names[c] if names else str(c) for c in sorted(classes))
            wrong = [repr(data.names[c]) if data.names else str(c) for c in strange]
            raise UserError(
                f"the {what} has examples of class {wrong[0] if wrong else kind(data.labels)}, "
                f"which no task has had: give examples of {allowed}."
            )

    def _check_method(self, data: Labelled) -> None:
        """Raise if method, selection or loss cannot take such inputs or labels."""
        method, selection, few = self.recipe.kind, self.context.selection, data.at(slice(2)).inputs
        weigh, custom = self.context.weigh, self.code.loss_fn is not None
        if not data.are_classes and not custom:
            raise UserError(
                f"the labels are {kind(data.labels)}, and classes are whole numbers of shape (n,), "
                "as labels.long() makes them: pass loss_fn=, with one loss per example, for "
                "anything but classes."
            )
        judges = weigh is not None and weigh.judges
        if not data.are_classes and (judges or "classes" in method.needs):
            raise UserError(
                f"{self.method} {'with influence robust ' * judges}needs classes and these labels "
                "are not classes: use another method, such as er or metasp."
            )
        if custom and "own loss" in method.needs:
            raise UserError(
                f"{method.__name__} learns classes by a loss of its own: leave loss_fn out, or "
                "use another method, such as er or derpp."
            )
        with_memory = self.recipe.selection is not None
        if not data.are_classes and with_memory and selection.classes:
            raise UserError(
                "this selection shares the memory by class and these labels are not classes: pass "
                "selection='reservoir'."
            )
        if "real inputs" in method.needs:
            moved = self.context.transform(few)
            if not isinstance(moved, Tensor) or not moved.is_floating_point():
                raise UserError(
                    f"{method.__name__} moves inputs along gradients, and these are {kind(few)}, "
                    "not one tensor of floats: use another method, such as er or metasp."
                )
        clusters = with_memory and selection.decide in CLUSTERING and selection.points == "pixels"
        if clusters and not isinstance(few, Tensor):
            raise UserError(
                "this selection clusters the numbers of one tensor and these inputs are several: "
                "pass selection='rehsel-features', or method='metasp'."
            )

    def _check_model(self, data: Labelled) -> None:
        """Raise if the model or the loss cannot take such examples."""
        few = data.at(slice(2))
        labels = few.labels.to(self.context.device)
        outputs = model_outputs(self.context, few.inputs).to(self.context.device)
        if self.code.loss_fn is None:
            check_range(outputs, data.labels)
        try:
            losses = self.context.loss_fn(outputs, labels)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise UserError(
                f"loss_fn cannot take outputs that are {kind(outputs)} with labels that are "
                f"{kind(labels)} ({first_line(error)}): make loss_fn take both."
            ) from error
        if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise UserError(
                f"loss_fn gives {shape} for {len(outputs)} examples: return one number per "
                'example, for instance F.mse_loss with reduction="none" and a mean over the '
                "outputs."
            )


def classes_of(tasks: Sequence[Task]) -> set[int]:
    """Return the classes of all tasks."""
    return set().union(*(task.classes for task in tasks))


def check_range(outputs: Tensor, labels: Tensor) -> None:
    """Raise if a label (n,) has no output (n, classes)."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise UserError(f"label {low} is negative: number the classes from 0.")
    if outputs.dim() != 2 or high >= outputs.shape[1]:
        shape = tuple(outputs.shape[1:])
        raise UserError(
            f"label {high} is out of range for outputs of shape {shape} per example: give the "
            "model a larger last layer, or name it with head= to let it grow."
        )
