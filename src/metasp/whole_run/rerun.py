"""A finished run that is trained once more, in the same bits, to look at its updates."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from metasp.data import Benchmark, load_benchmark
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.methods import METHODS, method_named
from metasp.methods.context import Watcher
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.train import Trainer, build_trainer
from metasp.train.from_spec import OWN
from metasp.types import State

Progress = Callable[[float], None]
"""Is told the share of the work that is done."""


@dataclass(frozen=True)
class Moment:
    """A trainer's exact state, after a number of steps."""

    steps: int
    tensors: State
    position: dict[str, Any]


@dataclass
class Rerun:
    """What makes a run's trainer again.

    stored: arrays of its last checkpoint, which training again must come to.
    notes: what is to be said of the answer."""

    spec: RunSpec
    benchmark: Benchmark
    stored: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: RunDir, data: Path | None = None) -> "Rerun":
        """Return a finished run's, from its spec; refuse what cannot be differentiated."""
        if not run.finished:
            raise UserError(f"{run.path} is not finished: let it finish by `metasp resume`.")
        if run.forgotten():
            raise UserError(
                f"examples were forgotten from {run.path}, which cannot be trained again with "
                "them: look at another run."
            )
        spec, checkpoint = run.spec(), run.checkpoint()
        check_differentiable(spec)
        stored = {} if checkpoint is None else dict(checkpoint.arrays)
        return cls(spec, load_benchmark(spec, data), stored)

    def trainer(self, moment: Moment | None = None) -> Trainer:
        """Return a trainer at the start, or as it stood at a moment. It does not test."""
        trainer = build_trainer(self.spec, self.benchmark)
        trainer.score = lambda learner, task, seen: (0.0, 0.0)
        if moment is not None:
            trainer.restore(moment.tensors, moment.position)
        return trainer

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        """Compute with the threads of the run, and with those from before afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.spec.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def forwards(
        self, watchers: Callable[[Trainer], Sequence[Watcher]], tell: Progress = lambda done: None
    ) -> tuple[Trainer, list[Moment]]:
        """Train from start to end with the watchers of the trainer. Return it, and about as many
        moments as there are steps between two of them; the first one is the start."""
        trainer = self.trainer()
        total = sum(count for count, _ in trainer.remaining().values())
        stretch, steps = max(1, round(math.sqrt(total))), 0
        moments = [moment_of(trainer, 0)]
        trainer.learner.watchers = [*watchers(trainer)]
        for event in trainer.run():
            if isinstance(event, StepTaken):
                steps += 1
                tell(steps / max(1, total))
                if steps % stretch == 0:
                    moments.append(moment_of(trainer, steps))
        self._compare(trainer.learner.model)
        return trainer, moments

    def _compare(self, model: nn.Module) -> None:
        """Check that the run has come to the weights that it stored."""
        same = True
        for name, value in model.state_dict().items():
            stored = self.stored.get(f"model/{name}")
            if stored is None:
                continue
            now = value.detach().cpu().numpy().reshape(stored.shape)
            if np.array_equal(stored, now):
                continue
            same = False
            if not np.allclose(stored, now, rtol=1e-2, atol=1e-3):
                raise UserError(
                    "training again came to other weights than the run stored: ask on the machine "
                    "and with the versions that it was made with (`environment` in result.json)."
                )
        if not same:
            self.notes.append("this machine repeats the run up to rounding, not bit for bit.")


def check_differentiable(spec: RunSpec) -> None:
    """Refuse a run of which the final losses are no smooth function of weights of its examples."""
    recipe = method_named(spec.method)
    if not recipe.kind.weighted_sum:
        able = ", ".join(name for name, other in METHODS.items() if other.kind.weighted_sum)
        raise UserError(
            f"the updates of method {spec.method!r} are no weighted sum of the losses of their "
            f"rows, which the influence of a whole run needs: use {able}."
        )
    if spec.weightless:
        raise UserError(
            "some examples of this run count nothing: look at the run that it was made of."
        )
    if spec.precision == "bf16":
        raise UserError("a run in bf16 is not smooth enough: train it with --precision fp32.")
    if spec.backbone == OWN:
        raise UserError(
            "this run has a model of its own, and code is never stored: use a built-in backbone."
        )


def moment_of(trainer: Trainer, steps: int) -> Moment:
    """Return a copy of a trainer's state."""
    tensors, position = trainer.state()
    return Moment(steps, {name: tensor.clone() for name, tensor in tensors.items()}, position)
