"""A model of the user's own in a run: made anew from its function, told apart by its kind."""

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metasp.benchmarks import Benchmark
from metasp.errors import UserError
from metasp.influence.origin import check_functional, kept_random_state
from metasp.memory import selection
from metasp.memory.rehsel import CLUSTERING
from metasp.methods import Recipe
from metasp.methods.context import evaluating
from metasp.spec import RunSpec
from metasp.trees import call, one_tensor
from metasp.types import Streams

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
    keeps = selection(spec.selection or "reservoir")
    pixels = keeps.decide in CLUSTERING and keeps.points == "pixels"
    if recipe.kind.moves_inputs:
        one_tensor(few, spec.method)
    if recipe.selection is not None and pixels and spec.settings.get("cluster") != "features":
        one_tensor(few, f"selection {spec.selection}")
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
