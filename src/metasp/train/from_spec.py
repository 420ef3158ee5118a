"""From a complete spec and its benchmark to a trainer that stands at the start."""

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metasp.backbones import build, default_width
from metasp.data import Benchmark
from metasp.encoded import EncodedRows
from metasp.errors import UserError
from metasp.influence.functional import check_functional, kept_random_state
from metasp.influence.parallel import Ranks
from metasp.influence.sharding import split_over_ranks
from metasp.memory import Memory, selection
from metasp.methods import (
    METHODS,
    Recipe,
    Settings,
    added_by,
    by_name,
    configured,
    method_named,
    resolved,
)
from metasp.methods.base import Method
from metasp.methods.context import Plan, TrainingContext, evaluating
from metasp.methods.weighting import InfluenceWeights
from metasp.spec import RunSpec, TrainingSpec
from metasp.train.early_stopping import PATIENCE, Stopping
from metasp.train.optimizers import OPTIMIZERS, LearningRate, check_momentum
from metasp.train.reweighting import ReweightedTrainer
from metasp.train.skipping import Skipping
from metasp.train.trainer import Trainer
from metasp.trees import call
from metasp.types import CROSS_ENTROPY, Streams

MakeModel = Callable[[], nn.Module]
"""A function that makes the model, with all its weights drawn from torch's global stream."""

OWN = "own"  # the backbone of such a run


def build_own(make: MakeModel, seed: int) -> nn.Module:
    """The model, with its weights drawn from the run's own stream; no global stream moves."""
    if isinstance(make, nn.Module) or not callable(make):
        raise UserError(
            "model must be a function that makes the model, so that a run starts from its seed: "
            f"give model=lambda: …, not a {type(make).__name__}."
        )
    own = Streams(seed)["model"].initial_seed()
    with kept_random_state(torch.device("cpu")), torch.random.fork_rng():
        torch.manual_seed(own)
        random.seed(own)
        np.random.seed(own % 2**32)
        try:
            model = make()
        except TypeError as error:
            raise UserError(
                f"model cannot be made ({error}): give a function without arguments, for instance "
                "model=lambda: MyNet(10)."
            ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model returned a {type(model).__name__}: return a torch.nn.Module.")
    return model


def identity(model: nn.Module) -> tuple[str, str]:
    """The qualified name of its class, and a digest of the names, shapes and types of its state."""
    kind = type(model)
    shapes = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        shapes.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
    return f"{kind.__module__}.{kind.__qualname__}", shapes.hexdigest()[:16]


def with_model(spec: RunSpec, make: MakeModel | None) -> RunSpec:
    """The spec with what its own model is; refused where that is not the one it was made with."""
    if make is None:
        if spec.model_digest is not None:
            raise UserError(
                f"this run has a model of its own ({spec.model_name}), and code is never stored: "
                "continue it in Python, by metasp.run with model= and the same settings."
            )
        return spec
    name, digest = identity(build_own(make, spec.seed))
    if (spec.model_name or name, spec.model_digest or digest) != (name, digest):
        raise UserError(
            f"this run was made with the model {spec.model_name} (shapes {spec.model_digest}), and "
            f"this one is {name} (shapes {digest}): give the same model, or start a new run."
        )
    return spec.with_(model_name=name, model_digest=digest, backbone=OWN, width=None)


@torch.no_grad()
def check_model(model: nn.Module, spec: RunSpec, recipe: Recipe, benchmark: Benchmark) -> None:
    """Raise if the model cannot learn the benchmark's classes."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("the model has no trainable parameters: there is nothing to learn.")
    if recipe.kind.measures or spec.observe:
        check_functional(model)
    few = benchmark.transform(benchmark.tasks[0].train.take(torch.arange(2)).inputs)
    try:
        with evaluating(model), kept_random_state(torch.device("cpu")):
            outputs: Any = call(model, few)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        reason = str(error).split("\n")[0][:120].rstrip(".")
        raise UserError(
            f"the model cannot take the examples of {spec.benchmark} ({reason}): make it fit "
            "their shape."
        ) from error
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    classes = benchmark.source.classes
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < classes:
        raise UserError(
            f"the model gives {shape} for 2 examples: give one output for each of the {classes} "
            "classes."
        )


GRADIENTS = "gradient-diverse"
LARGE = 1_000_000  # slots of a memory that are cheap enough to stay empty


def complete(spec: RunSpec, benchmark: Benchmark) -> RunSpec:
    """Fill in every default that the benchmark, method or backbone owns and all that follows from
    other settings, and check what only they can check. Completing twice changes nothing."""
    spec = resolved(spec)
    recipe = method_named(spec.method)
    source = benchmark.source
    if spec.data_digest not in (None, source.digest):
        raise UserError(
            f"the data of {spec.benchmark} is not what this run was started with (digest "
            f"{source.digest}, expected {spec.data_digest}): point --data to the same data."
        )
    own = check_compatible(spec.method, recipe, spec, spec.observe)
    check_momentum(spec.optimizer, spec.momentum)
    optimizer = OPTIMIZERS[spec.optimizer]
    momentum = or_default(spec.momentum, recipe.kind.momentum if spec.optimizer == "sgd" else 0.0)
    backbone = spec.backbone or ("convnet" if len(source.shape) == 3 else "mlp")
    done = spec.with_(
        data_digest=source.digest,
        decode="lazy" if isinstance(source.inputs, EncodedRows) else "auto",
        tasks=len(benchmark.tasks),
        split_by=spec.split_by or source.split_by,
        lr=or_default(spec.lr, or_default(optimizer.lr, recipe.kind.lr)),
        momentum=momentum if optimizer.momentum else None,
        weight_decay=or_default(
            spec.weight_decay, or_default(optimizer.weight_decay, recipe.kind.weight_decay)
        ),
        selection=spec.selection or recipe.selection,
        rehearse_last=(spec.rehearse_last or spec.epochs) if recipe.kind.schedules() else None,
        backbone=backbone,
        width=None if backbone == OWN else spec.width or default_width(backbone),
        device=str(choose_device(spec.device)),
        settings=by_name(*own),
    )
    if spec.validation:
        check_stopping(spec.method, recipe)
    elif spec.patience != PATIENCE:
        raise UserError(
            "patience counts epochs without a lower validation loss: give --validation too, for "
            "instance 0.1."
        )
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


def build_method(
    name: str, recipe: Recipe, options: TrainingSpec, learner: TrainingContext
) -> Method:
    """The method, and in the learner the influence that is added to it."""
    added = added_by(options.influence)
    own, weights = configured(recipe, name, options)
    method = recipe.kind(learner, own)
    if added is not None:
        learner.weigh = added.kind.weigher(learner, weights)
    return method


def check_stopping(name: str, recipe: Recipe) -> None:
    """Refuse to stop a method early that plans its steps itself."""
    if "own schedule" in recipe.kind.needs:
        raise UserError(
            f"{name} follows a schedule of its own and cannot stop early: leave out the validation."
        )


def check_compatible(
    name: str, recipe: Recipe, spec: TrainingSpec, observe: int = 0
) -> tuple[Settings, Settings | None]:
    """Refuse what the method cannot do, or would silently ignore. Return its settings and those of
    the influence that is added to it."""
    settings = configured(recipe, name, spec)
    kind = recipe.kind
    chosen = spec.selection or recipe.selection
    if spec.selection is not None and recipe.selection is None:
        raise UserError(f"method {name!r} keeps no memory: leave out the selection.")
    if spec.rehearse_last not in (None, spec.epochs) and not kind.schedules():
        raise UserError(f"method {name!r} does not follow rehearse_last: leave it out.")
    check_influence(name, recipe, spec, observe)
    if chosen == GRADIENTS and kind.selection != GRADIENTS:
        raise UserError(
            f"selection {chosen!r} needs gradients of single examples, which method {name!r} does "
            "not compute: use gss."
        )
    added = added_by(spec.influence)
    kinds = [kind] if added is None else [kind, added.kind]
    for each, own in zip(kinds, settings):
        each.check(own, spec.memory_batch, selection(chosen or "reservoir"))
    if chosen is not None and selection(chosen).judged and not any(k.judges() for k in kinds):
        raise UserError(
            f"selection {chosen!r} needs to know which labels are right, and method {name!r} does "
            "not judge: use metasp-robust, add influence robust, or use another selection."
        )
    measured = observe or any(k.measures for k in kinds)
    if chosen is not None and selection(chosen).measured and not measured:
        raise UserError(
            f"selection {chosen!r} needs influence, which method {name!r} does not compute: use a "
            "metasp method, or observe=1 in a run; a method of your own that computes it says "
            "so by measures = True."
        )
    return settings


def check_influence(name: str, recipe: Recipe, spec: TrainingSpec, observe: int) -> None:
    """Refuse to observe or weigh updates that cannot be, or are already."""
    if not observe and spec.influence == "none":
        return
    if not recipe.kind.observable():
        verb = "observed" if observe else "weighed by influence"
        others = [other for other, each in METHODS.items() if each.kind.observable()]
        raise UserError(
            f"the updates of method {name!r} cannot be {verb}: use {', '.join(others)}; a metasp "
            "method weighs and records by itself."
        )
    if observe and spec.influence != "none":
        raise UserError(
            "observe records influence without using it, and influence uses it: leave one of the "
            "two out."
        )


def or_default(given: float | None, default: float) -> float:
    return default if given is None else given


def faster_channels_last(backbone: str, width: int) -> bool:
    """Whether the network runs with channels as the innermost axis: faster, but the strided
    1×1 convolutions of a narrow resnet18 crash that way (see TrainingContext.prepare)."""
    return backbone == "convnet" or (backbone == "resnet18" and width >= 8)


def build_model(
    spec: RunSpec,
    benchmark: Benchmark,
    generator: torch.Generator,
    ranks: Ranks | None,
    make: MakeModel | None,
) -> tuple[nn.Module, bool]:
    """The network of a complete spec or of `make`, and whether channels are its innermost axis."""
    source, device = benchmark.source, torch.device(spec.device)
    channels_last = False
    if make is None:
        assert spec.backbone is not None  # as the spec is complete
        width = spec.width or default_width(spec.backbone)
        model = build(spec.backbone, source.shape, source.classes, spec.width, generator)
        channels_last = faster_channels_last(spec.backbone, width)
    else:
        model = build_own(make, spec.seed)
        check_model(model, spec, method_named(spec.method), benchmark)
    model.to(device, torch.float64 if spec.precision == "fp64" else None)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if ranks is not None:
        if spec.compile:
            raise UserError("a run on several processes is not compiled: leave out --compile.")
        split_over_ranks(model, ranks)
    if spec.compile:
        model.compile()
    return model, channels_last


def build_trainer(
    spec: RunSpec,
    benchmark: Benchmark,
    ranks: Ranks | None = None,
    make: MakeModel | None = None,
) -> Trainer:
    """Model, optimizer, memory and method of a complete spec, for this process or for one of
    those that share the run; `make` makes a model of one's own."""
    streams = Streams(spec.seed)
    device = torch.device(spec.device)
    model, channels_last = build_model(spec, benchmark, streams["model"], ranks, make)
    optimizer = OPTIMIZERS[spec.optimizer].build(
        model.parameters(), spec.lr or 0.0, spec.momentum or 0.0, spec.weight_decay or 0.0
    )
    recipe, keeps = method_named(spec.method), selection(spec.selection or "reservoir")
    inputs = benchmark.source.inputs
    pictures = inputs if isinstance(inputs, EncodedRows) else None
    learner = TrainingContext(
        model=model,
        optimizer=optimizer,
        loss_fn=CROSS_ENTROPY,
        memory=Memory(spec.memory, (*recipe.kind.columns, *keeps.columns), pictures),
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
        fp64=spec.precision == "fp64",
        compiled=spec.compile,
        channels_last=channels_last,
        weigh=InfluenceWeights(steps=spec.observe, observe=True) if spec.observe else None,
    )
    chosen = build_method(spec.method, recipe, spec, learner)
    tasks = benchmark.tasks
    if recipe.selection is None and not recipe.kind.keeps_verified:
        tasks = [task.with_trusted_in_train() for task in tasks]
    rate = LearningRate(spec.lr_drop_at, spec.lr_drop)
    # Only a control may know how many labels are wrong.
    told = benchmark.wrong_shares if getattr(chosen.settings, "told", False) else ()
    kind = ReweightedTrainer if spec.weightless else Trainer
    trainer = kind(learner, chosen, list(tasks), rate, told=told)
    if isinstance(trainer, ReweightedTrainer):
        gone = torch.tensor(spec.weightless)
        trainer.reweight(lambda ids: (~torch.isin(ids, gone)).double())
    trainer.stopping, trainer.skipping = Stopping(spec.patience), Skipping(spec.skip_corrupt)
    trainer.test_every = spec.test_every
    return trainer


def choose_device(wanted: str) -> torch.device:
    """Return the device asked for, or the best there is."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type in ("cpu", "cuda", "mps"):
            torch.empty(1, device=device)
            return device
    except (RuntimeError, AssertionError):
        pass
    raise UserError(f"this machine has no device {wanted!r}: use auto, cpu, cuda, cuda:N or mps.")
