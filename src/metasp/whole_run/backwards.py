"""One walk backwards through a run: the derivatives of its final losses for example weights.

With θ the parameters, m the optimizer's state, b the running statistics and λ the derivatives of a
final loss for them, a step θ', m' = step(θ, m, g) on g = ∇ Σ w_i ℓ_i(θ), and u = λᵀ ∂step/∂g:

    dQ/dw_i += uᵀ ∇ℓ_i(θ)        λ ← λᵀ ∂step/∂(θ, m) + Σ w_i ∇²ℓ_i(θ) u
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from metasp import trees
from metasp.events import StepTaken
from metasp.influence.functional import Named, copies, differentiable_twice
from metasp.influence.pseudo_step import Plan, make_plan
from metasp.methods.context import TrainingContext, WeightedRows
from metasp.train import Trainer
from metasp.trees import call
from metasp.whole_run.normalisation import batch_statistics
from metasp.whole_run.queries import Query, slopes_of
from metasp.whole_run.rerun import Moment, Progress, Rerun


@dataclass
class Adjoint:
    """Derivatives of the final losses, (queries, *shape) by name: for the parameters and running
    statistics of the network, and for the optimizer's state where they depend on it."""

    network: Named
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def norms(self) -> Tensor:
        """Return the norm for the network, (queries,)."""
        squares = [tensor.flatten(1).square().sum(1) for tensor in self.network.values()]
        return torch.stack(squares).sum(0).sqrt()


@dataclass(frozen=True)
class Recorded:
    """An update: its rows, and parameters and optimizer as they were before it."""

    rows: WeightedRows
    plan: Plan


@dataclass
class Recorder:
    """Numbers the updates of a run, and keeps them where it is told to.

    changes: by the number of an update, what happened to the network just before it: the number of
        the update after which it was marked and came back, or None where it was drawn anew."""

    learner: TrainingContext
    keep: bool = False
    count: int = 0
    updates: list[Recorded] = field(default_factory=list)
    changes: dict[int, int | None] = field(default_factory=dict)
    marked: int = 0

    def update(self, rows: WeightedRows) -> None:
        """Keep the rows, with copies of parameters and optimizer."""
        if self.keep:
            learner = self.learner
            plan = make_plan(learner.model, learner.optimizer, clip=rows.clip_norm)
            update: Any = plan.update
            copied = replace(update, state=copied_state(update.state))
            plan = replace(plan, params=copies(plan.params), update=copied)
            self.updates.append(Recorded(rows, plan))
        self.count += 1

    def mark(self) -> None:
        """Note after which update the network was marked."""
        self.marked = self.count

    def set_weights(self, marked: bool) -> None:
        """Note that the network changes before the next update."""
        self.changes[self.count] = self.marked if marked else None


def copied_state(state: Any) -> Any:
    """Return an optimizer's state with its tensors copied."""
    if isinstance(state, Mapping):
        return {name: copied_state(value) for name, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


@dataclass
class Derivatives:
    """Derivatives of the final losses for the weights of all examples.

    ids: of all examples (n,), ascending.
    direct, replayed: (queries, n), by rows that came with a step and by rows from the memory.
    norms: of λ, (queries,), at the end of the run and before each update going backwards."""

    ids: Tensor
    direct: Tensor
    replayed: Tensor
    norms: list[Tensor] = field(default_factory=list)

    def add(self, rows: WeightedRows, slopes: Tensor) -> None:
        """Add the derivatives (queries, r) for the weights of an update's rows."""
        places = torch.searchsorted(self.ids, rows.ids)
        slopes = slopes.cpu().double()
        for part, chosen in ((self.direct, ~rows.replayed), (self.replayed, rows.replayed)):
            part.index_add_(1, places[chosen], slopes[:, chosen])

    @property
    def growth(self) -> float:
        """Return how many times larger λ is at the start of the run than at its end; the largest
        of the queries."""
        return float((self.norms[-1] / self.norms[0]).max())


def walk(rerun: Rerun, queries: Sequence[Query], tell: Progress = lambda done: None) -> Derivatives:
    """Train the run once more, and walk back through it."""
    with rerun.threads():
        recorders: list[Recorder] = []

        def watchers(trainer: Trainer) -> list[Recorder]:
            recorders.append(Recorder(trainer.learner))
            return recorders

        trainer, moments = rerun.forwards(watchers, lambda done: tell(0.15 * done))
        first, learner = recorders[0], trainer.learner
        ids = torch.unique(torch.cat([task.ids for task in trainer.tasks]))
        zeros = torch.zeros(len(queries), len(ids), dtype=torch.float64)
        found = Derivatives(ids, zeros, zeros.clone())
        adjoint = Adjoint(slopes_of(learner, learner.model, queries))
        found.norms.append(adjoint.norms)
        returns: dict[int, list[Named]] = defaultdict(list)
        model, total = copy.deepcopy(learner.model).train(), moments[-1].steps + 1
        # Batched derivatives know no other layout.
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        number = first.count
        went_back(first.changes, number, adjoint, returns)
        for at in reversed(range(len(moments))):
            end = moments[at + 1].steps if at + 1 < len(moments) else None
            for update in reversed(recorded(rerun, moments[at], end)):
                for waiting in returns.pop(number, ()):
                    adjoint.network = {k: t + waiting[k] for k, t in adjoint.network.items()}
                adjoint, slopes = step_back(model, update, adjoint)
                found.add(update.rows, slopes)
                found.norms.append(adjoint.norms)
                number -= 1
                went_back(first.changes, number, adjoint, returns)
            tell(1 - 0.85 * moments[at].steps / total)
    return found


def went_back(
    changes: Mapping[int, int | None],
    number: int,
    adjoint: Adjoint,
    returns: dict[int, list[Named]],
) -> None:
    """Where the network was set to other weights between two updates: what depends on them waits
    until the walk comes to where they are from; on new ones nothing does."""
    if number in changes:
        source = changes[number]
        if source is not None:
            returns[source].append(adjoint.network)
        adjoint.network = {name: torch.zeros_like(t) for name, t in adjoint.network.items()}


def recorded(rerun: Rerun, moment: Moment, end: int | None) -> list[Recorded]:
    """Train again from a moment up to a number of steps, and return the updates on the way."""
    trainer = rerun.trainer(moment)
    recorder = Recorder(trainer.learner, keep=True)
    trainer.learner.watchers = [recorder]
    steps = moment.steps
    for event in trainer.run():
        steps += isinstance(event, StepTaken)
        if steps == end:
            break
    return recorder.updates


def step_back(model: nn.Module, update: Recorded, after: Adjoint) -> tuple[Adjoint, Tensor]:
    """Go back through one update. Returns the derivatives for what was before it, and those for
    the weights of its rows (queries, r), which are 1; the model lends its layers."""
    rows, plan = update.rows, update.plan
    params = dict(model.named_parameters())
    for name, value in plan.params.items():
        params[name].data.copy_(value)
    leaves = [params[name] for name in plan.params]
    ones = torch.ones_like(rows.weights).requires_grad_()
    with differentiable_twice(), batch_statistics(model) as (statistics, rates):
        losses = rows.losses(call(model, trees.each(Tensor.contiguous, rows.inputs)))
        loss = (ones * rows.weights * losses).sum()
        graded = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    grads = {name: g for name, g in zip(plan.params, graded) if g is not None}
    plan = plan.restrict(grads)
    taken = plan.step(plan.params, {k: g.detach() for k, g in grads.items()}, plan.update.state)
    state = {name: after.state[name] for name in grads if name in after.state}
    adjoint = taken.back({name: after.network[name] for name in grads}, state, True)
    goals = {name: rates[name] * after.network[name] for name in statistics}
    slopes, moved = products(
        [*grads.values(), *statistics.values()],
        [*adjoint.gradient.values(), *goals.values()],
        ones,
        leaves,
    )
    stayed = {name: (1 - rate) * after.network[name] for name, rate in rates.items()}
    before = {**after.network, **stayed, **{name: adjoint.theta[name] for name in grads}}
    for name, part in zip(update.plan.params, moved):
        before[name] = before[name] if part is None else before[name] + part
    return Adjoint(before, before_first_step(plan, adjoint.state)), slopes


def products(
    outputs: Sequence[Tensor], goals: Sequence[Tensor], ones: Tensor, leaves: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Return goalsᵀ ∂outputs/∂ones (queries, r) and goalsᵀ ∂outputs/∂leaf (queries, *shape) of each
    leaf; None where nothing depends on it."""
    slopes, *moved = torch.autograd.grad(
        outputs, [ones, *leaves], goals, allow_unused=True, is_grads_batched=True
    )
    assert slopes is not None
    return slopes, moved


def before_first_step(plan: Plan, state: dict[str, Any]) -> dict[str, Any]:
    """Return the derivatives for an optimizer's state; nothing where it has had none yet."""
    stored = chain.from_iterable(one.values() for one in plan.update.state.values())
    return state if any(value is not None for value in stored) else {}
