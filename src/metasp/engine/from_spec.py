"""From a complete spec and its benchmark to a trainer that stands at the start."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch

from metasp.backbones import build, default_width
from metasp.benchmarks import Benchmark
from metasp.engine.optimizers import OPTIMIZERS, LearningRate, check_momentum
from metasp.engine.trainer import Trainer
from metasp.errors import UserError
from metasp.memory import Memory, selection
from metasp.methods import Recipe, method_named, settings_of
from metasp.methods.learner import Learner, Plan
from metasp.methods.weighting import InfluenceWeights
from metasp.spec import RunSpec
from metasp.types import CROSS_ENTROPY, Streams

GRADIENTS = "gradient-diverse"
LARGE = 1_000_000  # slots of a memory that are cheap enough to stay empty


def complete(spec: RunSpec, benchmark: Benchmark, rules: bool = True) -> RunSpec:
    """Fill in every default that the benchmark, method or backbone owns and all that follows from
    other settings, and check what only they can check. Completing twice changes nothing.

    Without `rules` it is what was stored before specs said what follows from others."""
    recipe = method_named(spec.method)
    source = benchmark.source
    if spec.data_digest not in (None, source.digest):
        raise UserError(
            f"the data of {spec.benchmark} is not what this run was started with (digest "
            f"{source.digest}, expected {spec.data_digest}): point --data to the same data."
        )
    own = settings_of(recipe, spec.method, spec.settings)
    if rules:
        own = recipe.kind.filled_in(own, spec.epochs, spec.memory)
    follows = recipe.kind.schedules or not rules
    check_momentum(spec.optimizer, spec.momentum)
    optimizer = OPTIMIZERS[spec.optimizer]
    momentum = first(spec.momentum, recipe.kind.momentum if spec.optimizer == "sgd" else 0.0)
    done = spec.with_(
        data_digest=source.digest,
        tasks=len(benchmark.tasks),
        split_by=spec.split_by or source.split_by,
        lr=first(spec.lr, first(optimizer.lr, recipe.kind.lr)),
        momentum=momentum if optimizer.momentum else None,
        weight_decay=first(
            spec.weight_decay, first(optimizer.weight_decay, recipe.kind.weight_decay)
        ),
        selection=spec.selection or recipe.selection,
        rehearse_last=(spec.rehearse_last or spec.epochs) if follows else None,
        width=spec.width or default_width(spec.backbone),
        device=str(choose_device(spec.device)),
        settings={key: value for key, value in asdict(own).items() if value is not None},
    )
    check_sense(spec.method, recipe, spec, spec.observe)
    if recipe.selection is not None and done.memory < source.classes:
        raise UserError(
            f"a memory of {done.memory} is smaller than the {source.classes} classes that share "
            f"it: give --memory {source.classes} or more, or use a method without memory."
        )
    total = sum(len(task.train) for task in benchmark.tasks)
    if done.memory > max(total, LARGE):
        raise UserError(
            f"a memory of {done.memory} is larger than the {total} train examples that there are: "
            f"give --memory {total} or less."
        )
    return done


class Asked(Protocol):
    """What a run and a learner are both told."""

    @property
    def selection(self) -> str | None: ...

    @property
    def rehearse_last(self) -> int | None: ...

    @property
    def epochs(self) -> int: ...

    @property
    def memory_batch(self) -> int: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


def check_sense(name: str, recipe: Recipe, spec: Asked, observe: int = 0) -> None:
    """Refuse what the method cannot do, or would silently ignore."""
    kind = recipe.kind
    chosen = spec.selection or recipe.selection
    if spec.selection is not None and recipe.selection is None:
        raise UserError(f"method {name!r} keeps no memory: leave out the selection.")
    if spec.rehearse_last not in (None, spec.epochs) and not kind.schedules:
        raise UserError(f"method {name!r} does not follow rehearse_last: leave it out.")
    last = spec.settings.get("influence_last")
    if isinstance(last, int) and last > spec.epochs:
        raise UserError(
            f"influence_last is {last} but a task has only {spec.epochs} epochs: give at most that "
            "many."
        )
    if observe and not kind.observable:
        raise UserError(
            f"the updates of method {name!r} cannot be observed: observe er, mir, gss or gmed; "
            "metasp records its influence anyway."
        )
    if chosen == GRADIENTS and kind.selection != GRADIENTS:
        raise UserError(
            f"selection {chosen!r} needs gradients of single examples, which method {name!r} does "
            "not compute: use gss."
        )
    own = settings_of(recipe, name, spec.settings)
    kind.check(own, spec.memory_batch, selection(chosen or "reservoir"))
    if chosen is not None and selection(chosen).judged and not kind.judges:
        raise UserError(
            f"selection {chosen!r} needs to know which labels are right, and method {name!r} does "
            "not judge: use metasp-robust, or another selection."
        )
    measured = observe or kind.measures
    if chosen is not None and selection(chosen).measured and not measured:
        raise UserError(
            f"selection {chosen!r} needs influence, which method {name!r} does not compute: use a "
            "metasp method, or in a run --observe 1; a method of your own that computes it says "
            "so by measures = True."
        )


def first(given: float | None, default: float) -> float:
    return default if given is None else given


def faster_channels_last(backbone: str, width: int) -> bool:
    """Whether the network runs with channels as the innermost axis: faster, but the strided
    1×1 convolutions of a narrow resnet18 crash that way (see Learner.prepare)."""
    return backbone == "convnet" or (backbone == "resnet18" and width >= 8)


def build_trainer(spec: RunSpec, benchmark: Benchmark) -> Trainer:
    """Model, optimizer, memory and method of a complete spec."""
    streams = Streams(spec.seed)
    device = torch.device(spec.device)
    source = benchmark.source
    model = build(spec.backbone, source.shape, source.classes, spec.width, streams["model"])
    model.to(device)
    channels_last = faster_channels_last(spec.backbone, spec.width or default_width(spec.backbone))
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if spec.compile:
        model.compile()
    optimizer = OPTIMIZERS[spec.optimizer].build(
        model.parameters(), spec.lr or 0.0, spec.momentum or 0.0, spec.weight_decay or 0.0
    )
    recipe, keeps = method_named(spec.method), selection(spec.selection or "reservoir")
    learner = Learner(
        model=model,
        optimizer=optimizer,
        loss_fn=CROSS_ENTROPY,
        memory=Memory(spec.memory, (*recipe.kind.columns, *keeps.columns)),
        selection=keeps,
        transform=benchmark.transform,
        streams=streams,
        plan=Plan(
            epochs=spec.epochs,
            batch_size=spec.batch_size,
            memory_batch=spec.memory_batch,
            rehearse_last=spec.rehearse_last or spec.epochs,
            tasks=len(benchmark.tasks),
            shared_classes=benchmark.shared_classes,
        ),
        device=device,
        augment=spec.augment,
        augment_memory=spec.augment_memory,
        bf16=spec.precision == "bf16",
        compiled=spec.compile,
        channels_last=channels_last,
        weigh=InfluenceWeights(steps=spec.observe, observe=True) if spec.observe else None,
    )
    own = settings_of(recipe, spec.method, spec.settings)
    chosen = recipe.kind(learner, recipe.kind.filled_in(own, spec.epochs, spec.memory))
    tasks = benchmark.tasks
    if recipe.selection is None:  # no memory to pin them in
        tasks = [task.with_trusted_in_train() for task in tasks]
    rate = LearningRate(spec.lr_drop_at, spec.lr_drop)
    # Only a control may know how many labels are wrong.
    told = benchmark.wrong_shares if recipe.kind.told else ()
    return Trainer(learner, chosen, tasks, rate, told=told)


def choose_device(wanted: str) -> torch.device:
    """The device asked for, or the best there is."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"unknown device {wanted!r}: use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise UserError(
            f"this machine has no {wanted}: it has {torch.cuda.device_count()} of them."
        )
    usable = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable.get(device.type, False):
        raise UserError(f"this machine has no usable {device.type} device: use --device auto.")
    return device
