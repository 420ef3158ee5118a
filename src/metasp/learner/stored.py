"""A learner as a file's content, and back."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metasp import __version__
from metasp.errors import UserError
from metasp.learner import files
from metasp.learner.head import resize_head
from metasp.learner.judging import Audit
from metasp.learner.records import Records
from metasp.learner.view import nothing_like
from metasp.processes import heard, joined
from metasp.types import Examples, State, Task

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner


PARTS = ("random", "history", "tasks", "unsaved", "audit", "records", "encoder")


def to_file(learner: "ContinualLearner") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and all else in plain values."""
    trainer = learner._trainer
    tensors, position = trainer.state()
    tensors |= {f"random/{name}": t for name, t in learner._random.state().items()}
    tensors |= {f"unsaved/{name}": t for name, t in unsaved_buffers(learner.model).items()}
    tensors |= {f"audit/{name}": t for name, t in learner._audit.state().items()}
    tensors |= {f"history/{name}": t for name, t in learner._history.state_dict().items()}
    tensors |= {f"records/{name}": t for name, t in learner._records.state().items()}
    tensors |= {f"encoder/{name}": t for name, t in encoder_state(learner).items()}
    for task in trainer.tasks:
        tensors[f"tasks/{task.index}/ids"] = task.train.ids
        labels = task.train.labels
        tensors[f"tasks/{task.index}/labels"] = labels if task.classes else labels[:0]
    about = {
        "version": __version__,
        "method": learner.method,
        "own_method": not learner._named,
        "code": learner._parts.names(),
        "settings": {**learner.settings.as_dict(), "settings": own_settings(learner)},
        "model": files.shapes_of(learner.model),
        "position": position,
        "classes": [list(task.classes) for task in trainer.tasks],
        "shared_classes": trainer.learner.plan.shared_classes,
        "learned": learner._learned,
        "removed": learner._removed,
        "next_id": learner._next_id,
        "class_names": learner._names,
    }
    if learner._parts.encoder is not None:
        about["encoder"] = learner._parts.encoder.weights
    return tensors, about


def encoder_state(learner: "ContinualLearner") -> State:
    """The features of raw inputs in memory, so that a loaded learner has them to the bit."""
    encoder, memory = learner._parts.encoder, learner._trainer.learner.memory
    if encoder is None or learner.settings.keep == "features" or not len(memory):
        return {}
    return encoder.state(memory.read(memory.occupied).inputs)


def from_file(
    kind: "type[ContinualLearner]", path: Path, model: nn.Module, given: dict[str, Any]
) -> Any:
    """The learner that `to_file` was given, with its code given anew."""
    tensors, about = files.read(path, heard(joined(), lambda: files.content_of(path)))
    for name, words in about["code"].items():
        if given.get(name) is None:
            raise UserError(
                f"{path} was saved with its own {name} ({words}), and code is never stored: "
                f"pass {name}= again."
            )
    if about["own_method"] and given["method"] is None:
        raise UserError(
            f"{path} was saved with its own method ({about['method']}), and code is never "
            "stored: pass method= again."
        )
    method = given.pop("method") or about["method"]
    learner = kind(model, method, **given, **about["settings"])
    if learner.method != about["method"]:
        raise UserError(
            f"{path} was saved with method {about['method']}, not {learner.method}: pass the first."
        )
    trainer = learner._trainer
    if learner._head is not None:
        saved = about["model"].get(f"{learner.settings.head}.weight", [0])[0]
        if saved > learner._head.out_features:
            streams = trainer.learner.streams
            resize_head(learner._head, saved, trainer.learner.optimizer, streams["head"])
    files.check_model(path, about["model"], model)
    part = {name: part_of(tensors, name) for name in PARTS}
    encoder = learner._parts.encoder
    if encoder is not None:
        if encoder.weights != about.get("encoder"):
            raise UserError(
                f"{path} was saved with an encoder of other weights: pass the encoder that it was "
                "saved with."
            )
        encoder.restore(part["encoder"])
    trainer.tasks = [
        stored_task(index, tuple(classes), part["tasks"])
        for index, classes in enumerate(about["classes"])
    ]
    trainer.restore(tensors, about["position"])
    put_buffers(model, part["unsaved"])
    plan = trainer.learner.plan
    trainer.learner.plan = replace(plan, shared_classes=about["shared_classes"])
    learner._random.restore(part["random"])
    learner._history.load_state_dict(part["history"])
    learner._learned, learner._removed = about["learned"], about["removed"]
    learner._next_id = about["next_id"]
    learner._audit = Audit.from_state(part["audit"])
    learner._names = about.get("class_names", [])
    learner._records = Records.from_state(part["records"])
    return learner


def unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a model keeps besides its state, which nobody else would bring back; but for kinds that
    a file cannot hold."""
    saved = model.state_dict().keys()
    own = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
    storable = {n: b for n, b in own.items() if b.layout == torch.strided and not b.is_complex()}
    return {name: buffer.detach().clone() for name, buffer in storable.items()}


def put_buffers(model: nn.Module, kept: dict[str, Tensor]) -> None:
    """Bring them back; one may be made anew in another size by each forward pass."""
    there = dict(model.named_buffers())
    for name, buffer in kept.items():
        if name not in there:
            raise UserError(
                f"the model lacks the buffer {name} of the saved one: give a model of that kind."
            )
        if there[name].shape == buffer.shape:
            there[name].copy_(buffer)
        else:
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, buffer.to(there[name].device).clone())


def own_settings(learner: "ContinualLearner") -> dict[str, Any]:
    """The settings that were given, and the method's own, also those that came with an object."""
    settings = learner._trainer.method.settings
    values = {**learner.settings.settings, **dict(settings or {})}
    return {key: value for key, value in values.items() if value is not None}


def part_of(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {k[len(name) + 1 :]: t for k, t in tensors.items() if k.startswith(f"{name}/")}


def stored_task(index: int, classes: tuple[int, ...], columns: dict[str, Tensor]) -> Task:
    """A task as it is kept after it was learned: without inputs and tests."""
    labels, ids = columns[f"{index}/labels"], columns[f"{index}/ids"]
    if not classes:
        labels = nothing_like(labels, len(ids))
    none = torch.zeros(0)
    train = Examples(none, torch.arange(len(ids)), labels, ids)
    return Task(index, classes, train, Examples.of(none, none))


def snapshot(learner: "ContinualLearner") -> dict[str, Any]:
    """All that a task may change."""
    trainer = learner._trainer
    tensors, position = trainer.state()
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "position": position,
        "tasks": list(trainer.tasks),
        "plan": trainer.learner.plan,
        "unsaved": unsaved_buffers(learner.model),
        "head": learner._head.out_features if learner._head is not None else None,
        "random": learner._random.state(),
        "next_id": learner._next_id,
        "learned": list(learner._learned),
        "names": list(learner._names),
    }


def back_to(learner: "ContinualLearner", before: Mapping[str, Any]) -> None:
    trainer, inner = learner._trainer, learner._trainer.learner
    inner.optimizer.zero_grad()
    if learner._head is not None:
        resize_head(learner._head, before["head"], inner.optimizer, inner.streams["head"])
    trainer.restore(before["tensors"], before["position"])
    put_buffers(learner.model, before["unsaved"])
    trainer.tasks, inner.plan = list(before["tasks"]), before["plan"]
    inner.current = None
    learner._random.restore(before["random"])
    learner._next_id, learner._learned = before["next_id"], list(before["learned"])
    learner._names = list(before["names"])


def modes(model: nn.Module) -> dict[nn.Module, bool]:
    return {module: module.training for module in model.modules()}


def restore_modes(before: Mapping[nn.Module, bool]) -> None:
    for module, training in before.items():
        module.training = training
