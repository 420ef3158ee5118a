"""Rank correlations of predicted with real changes of final losses where examples are left out
(LDS), on a stream with a memory: the influence of the whole run, and what stands beside it."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import Told, machine, part, silent
from metasp.backbones import BACKBONES, Backbone
from metasp.backbones.networks import MLP
from metasp.data import Benchmark, load_benchmark
from metasp.experiment import Experiment
from metasp.methods.context import TrainingContext, WeightedRows
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.train import Trainer
from metasp.train.from_spec import complete
from metasp.trees import call
from metasp.whole_run.backwards import walk
from metasp.whole_run.queries import Query, queries_of, slopes_of
from metasp.whole_run.rerun import Rerun
from metasp.whole_run.retraining import agreement, mean_rank_correlation, retrained

SHARES = (0.01, 0.05, 0.2, 0.5)
GROUPS = 8  # of each share
ASKED = 200  # test examples of each task
SEEDS = (1, 2, 3, 4, 5)
RESAMPLES = 300
COMMON = {"benchmark": "split-fashion-mnist", "image_size": 14, "limit_per_class": 200,
          "method": "er", "memory": 100, "epochs": 3, "batch_size": 32, "memory_batch": 32,
          "width": 64, "threads": 1, "observe": 1}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "SGD .01, ReLU": {"lr": 0.01, "momentum": 0.0, "backbone": "mlp"},
    "momentum .9, GELU": {"lr": 0.01, "momentum": 0.9, "backbone": "mlp-gelu"},
    "momentum .9, ReLU, lr .03": {"lr": 0.03, "momentum": 0.9, "backbone": "mlp"},
}
FIRST = "whole run"


class SmoothMLP(MLP):
    """The built-in network with GELU in place of ReLU."""

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = F.gelu(layer(x))
        return x


BACKBONES["mlp-gelu"] = Backbone("benchmarks.truth:SmoothMLP", 64, "An MLP with GELU.")


@dataclass(frozen=True)
class Row:
    """One way to predict, under one recipe: by share removed the LDS, its 95% interval, and that of
    the lead of the whole run."""

    recipe: str
    way: str
    lds: dict[float, tuple[float, float, float]]
    lead: dict[float, tuple[float, float]]


@dataclass(frozen=True)
class Cost:
    """Seconds of training, and of the walk back for five queries."""

    backbone: str
    training: float
    walk: float


@dataclass(frozen=True)
class Trust:
    """What the runs of a recipe say of themselves: agreement and growth, by seed."""

    recipe: str
    agreement: list[float]
    growth: list[float]


Found = tuple[list[Row], list[Trust], list[Cost]]


def asked(rerun: Rerun) -> list[Query]:
    """Return the mean losses of the first test examples of each task."""
    queries = queries_of(rerun.benchmark.tasks, "test", False)
    few = torch.arange(ASKED)
    return [replace(query, examples=query.examples.only(few)) for query in queries]


class TracIn:
    """Sums, over all steps, learning rate × weight × ∇loss of a row · ∇query."""

    def __init__(self, learner: TrainingContext, queries: Sequence[Query], ids: Tensor) -> None:
        self.learner, self.queries, self.ids = learner, queries, ids
        self.scores = torch.zeros(len(queries), len(ids), dtype=torch.float64)

    def update(self, rows: WeightedRows) -> None:
        """Add what a step says of its rows."""
        lr = self.learner.optimizer.param_groups[0]["lr"]
        self.scores.index_add_(
            1,
            torch.searchsorted(self.ids, rows.ids),
            -lr * dots(self.learner, self.queries, rows).double(),
        )

    def mark(self) -> None:
        """Nothing comes back in these runs."""

    def set_weights(self, marked: bool) -> None:
        """Nothing comes back in these runs."""


def dots(learner: TrainingContext, queries: Sequence[Query], rows: WeightedRows) -> Tensor:
    """Return ∇(weight × loss) of each row · ∇query, (queries, r), in training mode."""
    goals = slopes_of(learner, learner.model, queries)
    ones = torch.ones_like(rows.weights).requires_grad_()
    losses = rows.losses(call(learner.model, rows.inputs))
    params = [p for p in learner.model.parameters() if p.requires_grad]
    grads = torch.autograd.grad((ones * rows.weights * losses).sum(), params, create_graph=True)
    (slopes,) = torch.autograd.grad(grads, ones, list(goals.values()), is_grads_batched=True)
    return slopes


def last_dots(trainer: Trainer, queries: Sequence[Query], ids: Tensor) -> Tensor:
    """Return −∇loss of each training example · ∇query at the end of the run, (queries, n)."""
    learner = trainer.learner
    scores = torch.zeros(len(queries), len(ids), dtype=torch.float64)
    for task in trainer.tasks:
        batch = learner.unaugmented(task.train.take(torch.arange(len(task.train))))

        def losses(outputs: Tensor, labels: Tensor = batch.labels) -> Tensor:
            return learner.loss_fn(outputs, labels)

        ones = torch.ones(batch.size)
        rows = WeightedRows(batch.inputs, losses, ones, batch.ids, ones.bool())
        scores[:, torch.searchsorted(ids, batch.ids)] = -dots(learner, queries, rows).double()
    return scores


def stored_influence(run: RunDir, ids: Tensor) -> Tensor:
    """Return what the steps of the run measured of each example, fused, summed (n,)."""
    columns = run.influence() or {}
    scores = torch.zeros(len(ids), dtype=torch.float64)
    summed = torch.tensor(columns["fused"]).double() * torch.tensor(columns["count"])
    return scores.index_add_(0, torch.searchsorted(ids, torch.tensor(columns["id"])), summed)


def one_seed(
    run: RunDir, benchmark: Benchmark, told: Told
) -> tuple[dict[str, Tensor], dict[float, tuple[Tensor, Tensor]], float, float]:
    """Return scores (queries, n) by their way; by share the weights of the groups (groups, n) and
    the measured changes (queries, groups); agreement and growth."""
    rerun = Rerun(run.spec(), benchmark)
    queries = asked(rerun)
    found = walk(rerun, queries, part(told, 0, 0.2))
    ids, watched = found.ids, []
    with rerun.threads():
        agrees = agreement(rerun, queries, found, part(told, 0.2, 0.3))

        def watchers(trainer: Trainer) -> list[TracIn]:
            watched.append(TracIn(trainer.learner, queries, ids))
            return watched

        trainer, _ = rerun.forwards(watchers, part(told, 0.3, 0.5))
        generator = torch.Generator().manual_seed(rerun.spec.seed)
        fused = stored_influence(run, ids).expand(len(queries), -1)
        ways = {
            FIRST: found.direct + found.replayed,
            "stored step influence": fused,
            "TracIn": watched[0].scores,
            "gradient dot": last_dots(trainer, queries, ids),
            "random": torch.randn(len(queries), len(ids), generator=generator).double(),
        }
        weights = torch.ones(len(SHARES) * GROUPS, len(ids), dtype=torch.float64)
        for at, row in enumerate(weights):
            size = max(1, round(SHARES[at // GROUPS] * len(ids)))
            row[torch.randperm(len(ids), generator=generator)[:size]] = 0
        changes = retrained(rerun, queries, ids, weights, part(told, 0.5, 1))
    parts = zip(SHARES, torch.split(weights, GROUPS), torch.split(changes, GROUPS, dim=1))
    return ways, {share: (w, c) for share, w, c in parts}, agrees, found.growth


def measure(data: Path | None = None, told: Told = silent, seeds: Sequence[int] = SEEDS) -> Found:
    """Train each recipe on each seed, predict, and leave the groups really out."""
    rows, trust = [], []
    benchmark = load_benchmark(RunSpec.from_dict(COMMON), data)
    with tempfile.TemporaryDirectory() as folder:
        for at, (recipe, settings) in enumerate(RECIPES.items()):
            outcomes = []
            for number, seed in enumerate(seeds):
                spec = RunSpec.from_dict({**COMMON, **settings, "seed": seed})
                tell = part(told, *((at * len(seeds) + number + k) / (len(RECIPES) * len(seeds))
                                    for k in (0, 1)))  # fmt: skip
                outcomes.append(one_seed(made(spec, Path(folder), benchmark), benchmark, tell))
            rows += rows_of(recipe, outcomes)
            trust.append(Trust(recipe, [o[2] for o in outcomes], [o[3] for o in outcomes]))
        costs = [cost_of(backbone, Path(folder), benchmark) for backbone in ("mlp", "convnet")]
    return rows, trust, costs


def made(spec: RunSpec, folder: Path, benchmark: Benchmark) -> RunDir:
    """Return the finished run of a spec."""
    done = complete(spec, benchmark)
    experiment = Experiment(done, benchmark, RunDir(folder / done.name))
    for _ in experiment.events():
        pass
    return experiment.directory


def rows_of(recipe: str, outcomes: Sequence[Any]) -> list[Row]:
    """Return a row for each way to predict: means over the seeds, with a bootstrap of the groups
    within each seed."""
    draws = np.random.default_rng(0).integers(0, GROUPS, (RESAMPLES, GROUPS))
    score: dict[tuple[str, float], Callable[[Any], float]] = {}
    drawn: dict[tuple[str, float], np.ndarray[Any, Any]] = {}
    for way in outcomes[0][0]:
        for share in SHARES:
            pairs = []
            for ways, measured, _, _ in outcomes:
                weights, changes = measured[share]
                pairs.append(((ways[way] @ (weights - 1).T).numpy(), changes.numpy()))

            def lds(d: Any, pairs: Sequence[Any] = tuple(pairs)) -> float:
                return float(np.mean([mean_rank_correlation(p[:, d], c[:, d]) for p, c in pairs]))

            score[way, share], drawn[way, share] = lds, np.array([lds(d) for d in draws])
    rows = []
    for way in outcomes[0][0]:
        cells, leads = {}, {}
        for share in SHARES:
            low, high = np.percentile(drawn[way, share], (2.5, 97.5))
            cells[share] = (score[way, share](slice(None)), float(low), float(high))
            lead = np.percentile(drawn[FIRST, share] - drawn[way, share], (2.5, 97.5))
            leads[share] = (float(lead[0]), float(lead[1]))
        rows.append(Row(recipe, way, cells, leads))
    return rows


def cost_of(backbone: str, folder: Path, benchmark: Benchmark) -> Cost:
    """Return the seconds of a training and of the walk back through it, without the queries'
    losses, for five queries."""
    spec = RunSpec.from_dict({**COMMON, "observe": 0, "backbone": backbone, "width": None,
                              "epochs": 2, "lr": 0.01})  # fmt: skip
    rerun = Rerun(made(spec, folder, benchmark).spec(), benchmark)
    queries = asked(rerun)
    with rerun.threads():
        began = time.perf_counter()
        rerun.forwards(lambda trainer: [])
        trained = time.perf_counter()
        walk(rerun, queries)
    return Cost(backbone, trained - began, time.perf_counter() - trained)


def render(found: Found) -> list[str]:
    """Return the table as lines of text."""
    rows, trust, costs = found
    names = "".join(f"{f'{share:.0%} removed':>21}" for share in SHARES)
    lines = [f"{'':<24}{names}"]
    facts: Mapping[str, Trust] = {each.recipe: each for each in trust}
    for at, row in enumerate(rows):
        if not at or rows[at - 1].recipe != row.recipe:
            about = facts[row.recipe]
            lines.append(
                f"{row.recipe} (agreement {np.mean(about.agreement):.2f}, growth of λ "
                f"{np.median(about.growth):.2g})"
            )
        cells = "".join(
            f"{value:>7.2f} ({low:>5.2f},{high:>5.2f}){'*' if row.lead[share][0] > 0 else ' '}"
            for share, (value, low, high) in row.lds.items()
        )
        lines.append(f"  {row.way:<22}{cells}")
    lines.append("LDS with 95% intervals by resampling the groups; * behind the whole run by more")
    lines.append("than chance (the interval of the difference lies above 0).")
    for cost in costs:
        lines.append(
            f"cost, {cost.backbone}: training {cost.training:.2f} s, the walk for five queries "
            f"{cost.walk:.2f} s: {cost.walk / cost.training:.1f} ×"
        )
    lines.append(
        f"Fashion-MNIST 14×14, 5 tasks of 400, memory 100, er; {len(trust[0].agreement)} seeds, "
        f"{GROUPS} groups of each size; {machine()}."
    )
    return lines


def as_json(found: Found) -> dict[str, Any]:
    """Return all that was found as plain values."""
    rows, trust, costs = found
    return {
        "rows": [asdict(row) for row in rows],
        "trust": [asdict(one) for one in trust],
        "costs": [asdict(cost) for cost in costs],
    }
