"""BatchNorm as a function that can be differentiated for its running statistics too."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from metasp.influence.functional import Named

RUNNING = ("running_mean", "running_var")


def normalisers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers that keep running statistics, by name."""
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            layers[name] = module
    return layers


def running_statistics(model: nn.Module) -> Named:
    """Return the running means and variances of all layers, by their names as buffers."""
    statistics = {}
    for name, layer in normalisers(model).items():
        for kind in RUNNING:
            statistics[f"{name}.{kind}"] = getattr(layer, kind)
    return statistics


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[tuple[Named, dict[str, float]]]:
    """Collect, of each layer that a pass in training mode goes through, the mean and variance by
    which its running statistics move, with their graph, and the rate at which they do: both by the
    names of the buffers. running' = (1 − rate) running + rate × statistic."""
    statistics: Named = {}
    rates: dict[str, float] = {}

    def collect(name: str, layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        axes = [axis for axis in range(x.dim()) if axis != 1]
        count = int(layer.num_batches_tracked or 0) + 1
        rate = 1 / count if layer.momentum is None else layer.momentum
        for kind, value in zip(RUNNING, (x.mean(axes), x.var(axes, unbiased=True))):
            statistics[f"{name}.{kind}"], rates[f"{name}.{kind}"] = value, rate

    with hooked(model, collect, before=True):
        yield statistics, rates


@contextmanager
def by_running_statistics(model: nn.Module, running: Named) -> Iterator[None]:
    """Normalise by these running statistics, written out, so that their graph stays alive."""

    def normalised(name: str, layer: _BatchNorm, inputs: tuple[Tensor, ...], _: Tensor) -> Tensor:
        shape = (1, -1, *[1] * (inputs[0].dim() - 2))
        mean, variance = (running[f"{name}.{kind}"].view(shape) for kind in RUNNING)
        y = (inputs[0] - mean) * torch.rsqrt(variance + layer.eps)
        return y * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else y

    with hooked(model, normalised, before=False):
        yield


@contextmanager
def hooked(model: nn.Module, hook: Callable[..., Any], before: bool) -> Iterator[None]:
    """Call a hook, with its name, before or after each layer that keeps running statistics."""
    with ExitStack() as stack:
        for name, layer in normalisers(model).items():
            kind = "register_forward_pre_hook" if before else "register_forward_hook"
            stack.enter_context(getattr(layer, kind)(partial(hook, name)))
        yield
