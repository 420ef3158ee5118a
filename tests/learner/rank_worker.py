"""One rank of a test under torchrun: a learner in float64, and everything that it comes to.
Usage: torchrun … -m tests.learner.rank_worker FOLDER"""

import sys
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.processes import joined, leave
from tests.learner.factories import pair, stream_of

METHODS = ("er", "metasp-rehsel", "derpp", "metasp-robust")
SETTINGS = {"memory": 20, "epochs": 2, "batch_size": 13, "memory_batch": 9}


def net(seed: int) -> nn.Module:
    """BatchNorm couples the rows of a batch, Dropout draws for each."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
        return nn.Sequential(*layers, nn.Linear(16, 2)).double()


def learned(method: str, folder: Path, rank: int) -> dict[str, Tensor]:
    """What a learner holds and says after two tasks, a file between them, and verdicts."""
    file = folder / f"{method}.safetensors"
    learner = ContinualLearner(net(seed=rank), method, head="4", **SETTINGS)
    learner.learn(double(pair(0, 60)), progress=False)
    learner.save(file)
    learner = ContinualLearner.load(file, net(seed=7 + rank))
    learner.learn(double(pair(1, 61)), test=double(pair(1, 30)), progress=False)
    return {**held(learner), **said(learner)}


def observed(folder: Path, rank: int) -> dict[str, Tensor]:
    """The same of a learner that has observed a stream, with a file in its midst."""
    file = folder / "observed.safetensors"
    settings = {**SETTINGS, "selection": "greedy", "window": 24}
    learner = ContinualLearner(net(seed=rank), "metasp", head="4", **settings)
    for batch in stream_of(6):
        learner.observe(double(batch))
    learner.save(file)
    learner = ContinualLearner.load(file, net(seed=7 + rank))
    for batch in stream_of(6, start=6):
        learner.observe(double(batch))
    learner.finish()
    return {**held(learner), **said(learner)}


def double(examples):
    inputs, labels = examples
    return inputs.double(), labels


def held(learner: ContinualLearner) -> dict[str, Tensor]:
    """The content of a file, its tables column by column."""
    tensors, _ = learner._session.content()
    tables = learner._session.history.records.tables
    columns = {
        f"{kind}/{task}/{name}": torch.from_numpy(table[name].to_numpy().copy())
        for (kind, task), table in tables.items()
        for name in table.column_names
        if table[name].type not in (pa.string(), pa.bool_()) and not table[name].null_count
    }
    own = {name: t.clone() for name, t in tensors.items() if not name.startswith("records/")}
    return {**own, **columns}


def said(learner: ContinualLearner) -> dict[str, Tensor]:
    x, y = double(pair(1, 25))
    verdicts = learner.judge((x, y)).to_pydict()
    numbers = {
        name: torch.tensor([float("nan") if v is None else v for v in verdicts[name]])
        for name in ("stability", "plasticity", "wrong", "looks_like")
    }
    score = torch.tensor(learner.score((x, y)))
    return {
        "predicted": learner.predict(x),
        "outputs": learner.outputs(x),
        "score": score,
        **numbers,
    }


def refused(rank: int) -> str:
    """What is said where the ranks are given different rows, as to a sampler of one's own."""
    learner = ContinualLearner(net(seed=0), "er", head="4", **SETTINGS)
    x, y = double(pair(0, 60))
    try:
        learner.learn((x[rank:], y[rank:]), progress=False)
    except UserError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ranks = joined()
    assert ranks is not None
    torch.set_num_threads(1)
    for method in METHODS:
        torch.save(learned(method, folder, ranks.rank), folder / f"{method}.{ranks.rank}.pt")
    torch.save(observed(folder, ranks.rank), folder / f"observed.{ranks.rank}.pt")
    (folder / f"refused.{ranks.rank}.txt").write_text(refused(ranks.rank))
    leave()
