"""Intake of a learner: examples that come in are checked, encoded, named, and made a task."""

import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metasp import trees
from metasp.data.validation import held_out
from metasp.errors import UserError
from metasp.learner.build import LearnerSettings, UserCode
from metasp.learner.checks import (
    check_fit,
    check_follows,
    check_ids,
    check_known_classes,
    check_same_kind,
    check_scored,
)
from metasp.learner.head import head_layer, resize_head
from metasp.learner.history import History
from metasp.learner.inputs import Labelled, as_ids, renumbered
from metasp.learner.outputs import model_outputs
from metasp.methods import Recipe
from metasp.train.from_spec import check_stopping
from metasp.train.trainer import Trainer
from metasp.trees import Tree
from metasp.types import Examples, Task


class TaskData(NamedTuple):
    """Data of one task as they were read; `validation` may be the share of `train` to hold out."""

    train: Labelled
    ids: Any
    test: Labelled | None
    trusted: Labelled | None
    validation: Labelled | float | None


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
        self.head = head_layer(trainer.learner.model, settings.head) if settings.head else None

    @property
    def head_size(self) -> int:
        """How many outputs the head has that grows; 0: none grows."""
        return 0 if self.head is None else self.head.out_features

    def resize_head(self, size: int) -> None:
        context = self.trainer.learner
        if self.head is not None and size:
            resize_head(self.head, size, context.optimizer, context.streams["head"])

    def numbered(self, data: Labelled) -> Labelled:
        """Return examples under the learner's numbers of classes."""
        return renumbered(data, self.history.class_names) if self.trainer.tasks else data

    def encoded(self, data: Labelled) -> Labelled:
        """Return what the learner goes on with of examples, their features in the cache."""
        if self.code.encoder is None:
            return data
        return self.code.encoder.entered(data, as_features=self.settings.keep == "features")

    def admit(self, data: Labelled, ids: Any, of_task: bool) -> tuple[Labelled, Tensor]:
        """Return those of the examples that were not forgotten, as the memory will hold them, and
        their ids. Nothing of the learner changes. Features are cached of a whole task alone: nobody
        knows what of a stream will come again."""
        context, known, encoder = self.trainer.learner, self.trainer.tasks, self.code.encoder
        data = self.numbered(data)
        names = as_ids(ids, len(data.labels), self.history.next_id)
        if ids is not None:
            check_ids(names, data, known)
        left = torch.nonzero(~torch.isin(names, torch.tensor(self.history.forgotten))).flatten()
        data, names = data.at(left), names[left]
        if not len(left):
            return data, names
        if of_task or encoder is None:
            data = self.encoded(data)
        else:
            data = data._replace(inputs=encoder(data.inputs))
        check_follows(context, data, known, self.history.learned)
        return data, names

    def fit(self, data: Labelled) -> None:
        """Give the head an output for each class that has come, and check that all fits; where it
        does not, the head is as before."""
        context, size = self.trainer.learner, self.head_size
        before = context.streams["head"].get_state()
        try:
            if data.are_classes:
                self.resize_head(max(size, int(data.labels.max()) + 1))
            check_fit(context, data, self.recipe, self.code.loss_fn)
        except UserError:
            self.resize_head(size)
            context.streams["head"].set_state(before)
            raise

    def enter(self, data: Labelled, names: Tensor) -> None:
        """Know the classes and ids of examples that are about to be learned."""
        context, closed = self.trainer.learner, self.trainer.tasks
        closed = closed[:-1] if self.trainer.open else closed
        self.history.class_names = data.names
        self.history.next_id = max(self.history.next_id, int(names.max()) + 1)
        if {label for task in closed for label in task.classes} & {*data.classes}:
            context.plan = replace(context.plan, shared_classes=True)

    def make_task(self, given: TaskData) -> Task:
        """Return the next task of the stream; the head has grown for it and the history knows of
        it."""
        tasks, encoder = self.trainer.tasks, self.code.encoder
        if encoder is not None:
            encoder.begin_task(self._raw_inputs_needed())
        data, names = self.admit(given.train, given.ids, of_task=True)
        if not len(names):
            raise UserError("every example of the dataset was forgotten before: nothing is left.")
        self.fit(data)
        test = self._tested(given.test, data)
        data, names, held = self._split(data, names, given.validation)
        self.enter(data, names)
        train = data.examples(names)
        task = Task(len(tasks), data.classes, train, test, validation=held)
        self.history.begin_task(trees.kind(data.inputs), len(names))
        if given.trusted is not None:
            task = replace(task, trusted=self.verified(given.trusted, [*tasks, task]))
        if self.recipe.selection is None:  # no memory to pin them in
            task = task.with_trusted_in_train()
        return task

    def verified(self, data: Labelled, tasks: Sequence[Task]) -> Examples:
        """Return examples whose labels a person has verified, under ids of their own."""
        if self.trainer.tasks or self.history.class_names:
            data = renumbered(data, self.history.class_names)
        classes = {label for task in tasks for label in task.classes}
        check_known_classes(data, classes, self.history.class_names, "verified examples")
        data = self.encoded(data)
        check_follows(self.trainer.learner, data, tasks, self.history.learned)
        names = self.history.next_id + torch.arange(len(data.labels))
        self.history.next_id = int(names[-1]) + 1
        return data.examples(names)

    def _tested(self, test: Labelled | None, data: Labelled) -> Examples:
        """Return the examples that a task is tested by; there may be none."""
        if test is None:
            return data.no_examples()
        test = self.encoded(renumbered(test, data.names))
        check_scored(test.labels, data.labels, self.code)
        model_outputs(self.trainer.learner, trees.rows(test.inputs, slice(2)))
        return test.examples()

    def _split(
        self, data: Labelled, names: Tensor, validation: Labelled | float | None
    ) -> tuple[Labelled, Tensor, Examples | None]:
        """Return what to learn from, its ids, and the examples by which learning stops."""
        if validation is None:
            return data, names, None
        check_stopping(self.method, self.recipe)
        if isinstance(validation, float):
            stream = self.trainer.learner.streams["held-out"]
            rows = held_out(data.labels, validation, stream)
            rest = torch.nonzero(~torch.isin(torch.arange(len(names)), rows)).flatten()
            return data.at(rest), names[rest], data.at(rows).examples(names[rows])
        validation = self.encoded(renumbered(validation, data.names))
        check_same_kind(validation, data)
        if data.are_classes:
            classes = {label for task in self.trainer.tasks for label in task.classes}
            every = classes | {*data.classes}
            check_known_classes(validation, every, data.names, "validation dataset")
        return data, names, validation.examples()

    def _raw_inputs_needed(self) -> list[Tree]:
        """Return raw inputs of earlier tasks whose features are still asked for."""
        memory = self.trainer.learner.memory
        if self.settings.keep == "features":
            return []
        tests = [task.test.source for task in self.trainer.tasks if len(task.test)]
        return tests if memory.inputs is None else [memory.read(memory.occupied).inputs, *tests]


def check_patience(patience: Any) -> int:
    """Return the patience, or raise if it is no number of epochs."""
    integral = isinstance(patience, numbers.Integral) and not isinstance(patience, bool)
    if not integral or patience < 1:
        raise UserError(f"patience is {patience!r}: give a whole number of epochs, 1 or more.")
    return int(patience)


def check_share(share: numbers.Real) -> float:
    """Return the share of a dataset to hold out, or raise if it is none."""
    if not 0 < float(share) < 1:
        raise UserError(
            f"validation is {share!r}: give a share between 0 and 1 of the dataset, or a dataset "
            "of its own."
        )
    return float(share)
