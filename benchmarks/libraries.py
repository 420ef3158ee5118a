"""Our influence beside the libraries people use, on a 784-16-10 net: same numbers, less time.

captum and kronfluence are an extra of their own: they are imported here, when the comparison is
asked for, and nowhere else. pyDVL, which needs numpy below 2, is compared with where it is
installed. Goals are test examples; "vector" is the influence of each training example on their mean
loss, "matrix" one row per test example.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from reproduce.approximation import trained
from reproduce.hessian import curvature, solve
from reproduce.influence_check import examples
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Told, machine, part, silent
from metasp.influence import example_influence, influence_matrix
from metasp.types import CROSS_ENTROPY as LOSS
from metasp.types import TensorPair as Pair


@dataclass(frozen=True)
class Rival:
    """One library against ours: seconds per test example (or in all), and Pearson correlation."""

    name: str
    what: str
    theirs: float
    ours: float
    pearson: float

    @property
    def faster(self) -> float:
        """How many times faster ours is."""
        return self.theirs / self.ours


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson correlation of all entries."""
    pair = torch.stack([a.reshape(-1).double(), b.reshape(-1).double()])
    return float(torch.corrcoef(pair)[0, 1])


def timed(call: Callable[[], Tensor], repeats: int = 1) -> tuple[float, Tensor]:
    """The least processor seconds (one thread) of some calls, and the result."""
    best, result = float("inf"), torch.empty(0)
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return best, result


def captum_scores(
    model: nn.Module, train: Pair, test: Pair, whole: bool, tuned: bool = True
) -> Tensor:
    """TracInCP with one checkpoint, the present parameters: (m, n), or (n,) summed over tests.

    ``tuned`` switches on its vectorised gradients, which are off by default.
    """
    from captum.influence import TracInCP

    tracin = TracInCP(
        model,
        TensorDataset(*train),
        checkpoints=["now"],
        checkpoints_load_func=lambda m, path: 1.0,
        loss_fn=nn.CrossEntropyLoss(reduction="sum" if tuned else "none"),
        batch_size=250,
        sample_wise_grads_per_batch=tuned,
    )
    scores: Tensor = tracin.influence(test, aggregate=not whole)
    return scores if whole else scores.reshape(-1) / len(test[0])


def kronfluence_scores(model: nn.Module, train: Pair, test: Pair, whole: bool) -> Tensor:
    """Pairwise scores with identity factors: (m, n), or (n,) summed over tests."""
    import copy
    import logging

    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Classify(Task):  # type: ignore[misc]
        """Summed cross entropy."""

        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

        def compute_measurement(self, batch: Any, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    task = Classify()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_model(copy.deepcopy(model), task)
        analyzer = Analyzer(
            "speed", prepared, task, cpu=True, output_dir=folder, disable_tqdm=True,
            log_level=logging.ERROR, disable_model_save=True,
        )  # fmt: skip
        analyzer.fit_all_factors(
            factors_name="identity",
            dataset=TensorDataset(*train),
            per_device_batch_size=250,
            factor_args=FactorArguments(strategy="identity"),
        )
        analyzer.compute_pairwise_scores(
            scores_name="scores",
            factors_name="identity",
            query_dataset=TensorDataset(*test),
            train_dataset=TensorDataset(*train),
            per_device_query_batch_size=250,
            per_device_train_batch_size=250,
            score_args=ScoreArguments(aggregate_query_gradients=not whole),
        )
        scores: Tensor = analyzer.load_pairwise_scores("scores")["all_modules"]
    return scores if whole else scores.reshape(-1) / len(test[0])


def pydvl_scores(model: nn.Module, train: Pair, test: Pair, damping: float) -> Tensor:
    """Conjugate-gradient influence, (m, n)."""
    from pydvl.influence.torch import CgInfluence

    loader = DataLoader(TensorDataset(*train), batch_size=len(train[0]))
    fitted = CgInfluence(model, F.cross_entropy, regularization=damping).fit(loader)
    scores: Tensor = fitted.influences(*test, *train)
    return scores


def measure(data: Path | None, told: Told = silent) -> list[Rival]:
    """All comparisons on the examples of `metasp influence-check`."""
    _, (x, y, goal_x, goal_y) = examples(data)
    return compare((x.flatten(1), y), (goal_x.flatten(1), goal_y), told=told)


def compare(
    train: Pair, test: Pair, damping: float = 3.0, some: int = 50, told: Told = silent
) -> list[Rival]:
    """All comparisons, float32, on a net after 150 steps of full-batch descent."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = trained((train[0].double(), train[1]), seed=1231).float()
        rivals = first_order(model, train, test, part(told, 0.0, 0.8))
        if find_spec("pydvl") is not None:
            rivals.append(second_order(model, train, test, damping, some))
        return rivals
    finally:
        torch.set_num_threads(before)


def first_order(model: nn.Module, train: Pair, test: Pair, told: Told) -> list[Rival]:
    """captum and Kronfluence against our one-step influence (lr so small that it stays put)."""
    lr = 1e-4
    ours = {
        "vector": partial(example_influence, model, LOSS, train, test, lr=lr),
        "matrix": partial(influence_matrix, model, LOSS, train, test),
    }
    scorers: dict[str, Callable[..., Tensor]] = {
        "captum": partial(captum_scores, tuned=False),
        "captum tuned": captum_scores,
        "kronfluence": kronfluence_scores,
    }
    rivals = []
    for what, call in ours.items():
        seconds, mine = timed(call, 5)
        for name, score in scorers.items():
            theirs, scores = timed(partial(score, model, train, test, what == "matrix"), 3)
            rivals.append(Rival(name, what, theirs, seconds, abs(pearson(scores, mine))))
            told(len(rivals) / (len(ours) * len(scorers)))
    return rivals


def second_order(model: nn.Module, train: Pair, test: Pair, damping: float, some: int) -> Rival:
    """pyDVL on ``some`` test examples against our exact influence on all; per test example."""
    few = (test[0][:some], test[1][:some])
    pydvl_scores(model, train, (few[0][:1], few[1][:1]), damping)  # imports are not its speed
    theirs, scores = timed(partial(pydvl_scores, model, train, few, damping))
    ours, mine = timed(partial(second_order_matrix, model, train, test, damping))
    agreement = abs(pearson(scores, mine[:some]))
    return Rival("pyDVL", "matrix", theirs / some, ours / len(test[0]), agreement)


def second_order_matrix(
    model: nn.Module, train: Pair, test: Pair, damping: float, chunk: int = 100
) -> Tensor:
    """Exact damped influence of training example i on test example j, shape (m, n)."""
    found = curvature(model, LOSS, train)
    rows = []
    for start in range(0, len(test[0]), chunk):
        some = (test[0][start : start + chunk], test[1][start : start + chunk])
        rows.append(-found.examples(solve(found.hessian, found.each_gradient(some), damping)))
    return torch.cat(rows)


def render(rivals: list[Rival]) -> list[str]:
    """The comparison as lines of text."""
    lines = [machine(), f"{'library':<14}{'what':<10}{'theirs s':>12}{'ours s':>12}{'faster':>10}"
             f"{'Pearson':>12}"]  # fmt: skip
    for r in rivals:
        note = "  (per test example)" if r.name == "pyDVL" else ""
        lines.append(
            f"{r.name:<14}{r.what:<10}{r.theirs:12.4f}{r.ours:12.4f}{r.faster:9.1f}x"
            f"{r.pearson:12.6f}{note}"
        )
    names = dict.fromkeys(r.name.split()[0] for r in rivals)
    return [*lines, ", ".join(f"{name} {version(name)}" for name in names)]


def as_json(rivals: list[Rival]) -> dict[str, Any]:
    return {"libraries": [asdict(rival) for rival in rivals]}
