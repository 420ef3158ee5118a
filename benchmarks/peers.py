"""Nine methods beside Avalanche's, on the same stream, network, starting weights and seeds.

Each seed trains three times with each method: ours with its defaults, ours with the settings that
come nearest to theirs (mostly a memory that decides when a task ends), and theirs. Seconds are
processor time of training without tests, interleaved in one process with one thread. Neither side
stores a run.

Avalanche imports torchvision, whose parts are not used here. Where torchvision has no build for the
pinned torch, a package of that name whose classes do nothing is enough; the output says so."""

import copy
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.timing import Told, machine, silent
from metasp.api import sorted_out
from metasp.data import Benchmark, load_benchmark
from metasp.events import Evaluated
from metasp.spec import RunSpec
from metasp.train import Trainer, build_trainer
from metasp.train.from_spec import complete
from metasp.types import Examples

SEEDS = (301, 302, 303)
TASKS, MEMORY, BATCH, EPOCHS = 5, 200, 32, 5
STREAM = {
    "benchmark": "split-fashion-mnist",
    "image_size": 14,
    "limit_per_class": 200,
    "backbone": "mlp",
    "memory": MEMORY,
    "epochs": EPOCHS,
    "batch_size": BATCH,
    "memory_batch": BATCH,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "threads": 1,
    "device": "cpu",
}
TEST_BATCH = 500
DUMB = {"epochs": 30, "batch": 16}  # GDumb's training on the memory, on both sides


@dataclass(frozen=True)
class Peer:
    """A method of ours and the strategy of Avalanche that implements the same paper."""

    strategy: str
    theirs: Mapping[str, object]
    alike: Mapping[str, object] = field(default_factory=dict)  # what brings ours nearer to theirs
    ours: Mapping[str, object] = field(default_factory=dict)  # of ours, with and without `alike`
    lr: float = 0.1


PER_TASK = MEMORY // TASKS
BY_CLASS = {"selection": "class-balanced"}  # decides when a task ends, as their memories do
PEERS: Mapping[str, Peer] = {
    "er": Peer("Replay", {"mem_size": MEMORY}, {"selection": "task-balanced"}),
    "derpp": Peer(
        "DER", {"mem_size": MEMORY, "batch_size_mem": BATCH, "alpha": 0.2, "beta": 0.5}, BY_CLASS
    ),
    "er-ace": Peer(
        "ER_ACE", {"mem_size": MEMORY, "batch_size_mem": BATCH}, {"selection": "greedy"}
    ),
    "icarl": Peer("ICaRL", {"memory_size": MEMORY, "buffer_transform": None, "fixed_memory": True}),
    "gem": Peer("GEM", {"patterns_per_exp": PER_TASK, "memory_strength": 0.5}, lr=0.03),
    "agem": Peer("AGEM", {"patterns_per_exp": PER_TASK, "sample_size": BATCH}, lr=0.03),
    "mir": Peer("MIR", {"mem_size": MEMORY, "subsample": 50, "batch_size_mem": BATCH}, BY_CLASS),
    "gss": Peer(
        "GSS_greedy",
        {"mem_size": MEMORY, "mem_strength": 4, "input_size": [1, 14, 14]},
        {"every_epoch": True},
        lr=0.03,
    ),
    "gdumb": Peer(
        "GDumb",
        {"mem_size": MEMORY, "train_epochs": DUMB["epochs"], "train_mb_size": DUMB["batch"]},
        {"cutmix": 0.0},
        {"memory_epochs": DUMB["epochs"], "train_batch": DUMB["batch"], "momentum": 0.0},
        lr=0.05,
    ),
}


@dataclass(frozen=True)
class Side:
    """One side of a method over the seeds: class-IL A_∞ from 0 to 1, and seconds of training."""

    accuracy: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Beside:
    method: str
    ours: Side
    alike: Side
    theirs: Side


def measure(
    data: Path | None = None,
    seeds: Sequence[int] = SEEDS,
    told: Told = silent,
    names: Sequence[str] = tuple(PEERS),
) -> list[Beside]:
    """Every method on every seed; the three sides of a seed train one after the other."""
    torch.set_num_threads(1)
    training = import_module("avalanche.training")
    rows = []
    for number, name in enumerate(names):
        peer = PEERS[name]
        sides: list[list[tuple[float, float]]] = [[], [], []]
        for turn, seed in enumerate(seeds):
            plain, near = (spec_of(name, seed, more) for more in ({}, peer.alike))
            stream = load_benchmark(plain, data)
            trainers = [build_trainer(complete(spec, stream), stream) for spec in (plain, near)]
            model = copy.deepcopy(trainers[0].learner.model)
            sides[0].append(train_ours(trainers[0]))
            sides[1].append(train_ours(trainers[1]))
            sides[2].append(
                train_theirs(getattr(training, peer.strategy), peer, model, stream, seed)
            )
            told((number + (turn + 1) / len(seeds)) / len(names))
        rows.append(Beside(name, *(Side(*map(tuple, zip(*side, strict=True))) for side in sides)))
    return rows


def spec_of(name: str, seed: int, more: Mapping[str, object]) -> RunSpec:
    peer = PEERS[name]
    return RunSpec.from_dict(
        sorted_out({**STREAM, "method": name, "seed": seed, "lr": peer.lr, **peer.ours, **more})
    )


def train_ours(trainer: Trainer) -> tuple[float, float]:
    """The final accuracy and the seconds between tests."""
    seconds, accuracy = 0.0, float("nan")
    events = iter(trainer.run())
    while True:
        start = time.process_time()
        event = next(events, None)
        if event is None:
            return accuracy, seconds
        if not isinstance(event, Evaluated):
            seconds += time.process_time() - start
        elif not event.before:
            accuracy = statistics.mean(event.class_il)


def train_theirs(
    strategy: Callable[..., Any], peer: Peer, model: nn.Module, stream: Benchmark, seed: int
) -> tuple[float, float]:
    """The same of a strategy of Avalanche, from the same weights."""
    from avalanche.training.plugins import EvaluationPlugin

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=peer.lr),
        "train_mb_size": BATCH,
        "train_epochs": EPOCHS,
        "eval_mb_size": TEST_BATCH,
        "evaluator": EvaluationPlugin(),
    }
    if peer.strategy == "ICaRL":
        shared |= {"feature_extractor": Features(model), "classifier": model.head}
    else:
        shared |= {"model": model, "criterion": nn.CrossEntropyLoss()}
    learner = strategy(**{**shared, **peer.theirs})
    seconds = 0.0
    for experience in experiences(stream):
        start = time.process_time()
        learner.train(experience)
        seconds += time.process_time() - start
    return tested(learner.model, stream), seconds


class Features(nn.Module):
    """One of our networks without its head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.whole = model

    def forward(self, inputs: Tensor) -> Tensor:
        whole: Any = self.whole
        found: Tensor = whole.features(inputs)
        return found


class Labelled(TensorDataset):
    """Tensors with the attribute that Avalanche asks for the labels."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        super().__init__(inputs, labels)
        self.targets = labels.tolist()


def experiences(stream: Benchmark) -> Sequence[Any]:
    """The stream as Avalanche has it, with the inputs that our networks see."""
    from avalanche.benchmarks import nc_benchmark

    sets = []
    for which in ("train", "test"):
        parts = [inputs_of(getattr(task, which), stream) for task in stream.tasks]
        x, y = (torch.cat(column) for column in zip(*parts, strict=True))
        sets.append(Labelled(x, y))
    order = [label for task in stream.tasks for label in task.classes]
    made = nc_benchmark(
        *sets, n_experiences=TASKS, task_labels=False, shuffle=False, fixed_class_order=order
    )
    found: Sequence[Any] = made.train_stream
    return found


def inputs_of(examples: Examples, stream: Benchmark) -> tuple[Tensor, Tensor]:
    """All inputs of some examples as the network sees them, and their labels."""
    batch = examples.take(torch.arange(len(examples)))
    inputs = stream.transform(batch.inputs)
    assert isinstance(inputs, Tensor)
    return inputs, batch.labels


@torch.no_grad()
def tested(model: nn.Module, stream: Benchmark) -> float:
    """The mean over tasks of the accuracy among all classes, as our A_∞."""
    model.eval()
    right = []
    for task in stream.tasks:
        inputs, labels = inputs_of(task.test, stream)
        right.append(float((model(inputs).argmax(1) == labels).float().mean()))
    return statistics.mean(right)


def render(rows: Sequence[Beside]) -> list[str]:
    head = f"{'':<9}{'class-IL A_inf, %':^42}{'seconds of training':^30}"
    names = ("ours", "ours, alike", "avalanche", "ours", "alike", "avalanche", "ratio")
    lines = [head, f"{'method':<9}" + "".join(f"{n:>14}" for n in names[:3])
             + "".join(f"{n:>10}" for n in names[3:])]  # fmt: skip
    for row in rows:
        sides = (row.ours, row.alike, row.theirs)
        cells = [f"{spread(side.accuracy):>14}" for side in sides]
        seconds = [statistics.median(side.seconds) for side in sides]
        cells += [f"{value:>10.2f}" for value in seconds]
        lines.append(f"{row.method:<9}{''.join(cells)}{seconds[2] / seconds[0]:>10.1f}")
    return [*header(rows), *lines]


def spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * deviation:.1f}"


def header(rows: Sequence[Beside]) -> list[str]:
    """What was compared, on what, with what."""
    seeds = len(rows[0].ours.accuracy) if rows else 0
    return [
        f"metasp beside avalanche-lib {version('avalanche-lib')}; {machine()}.",
        f"torchvision that avalanche imports: {torchvision_version()}.",
        "Split Fashion-MNIST, 14x14, 200 train examples per class, 5 tasks of 2 classes;",
        f"mlp 128-128 from the same weights; memory {MEMORY}, batches {BATCH} + {BATCH},",
        f"{EPOCHS} epochs, sgd at .1 (gem, agem and gss at .03, gdumb at .05).",
        f"Accuracy: mean of {seeds} seeds ± their standard deviation. Seconds: median of processor",
        "time. Ratio: avalanche's seconds to ours. 'alike' has the settings that come nearest to",
        "avalanche's: see PEERS in benchmarks/peers.py.",
        "",
    ]


def torchvision_version() -> str:
    found = str(getattr(import_module("torchvision"), "__version__", "?"))
    return f"{found}, which does nothing" if "stand-in" in found else found


def as_json(rows: Sequence[Beside]) -> dict[str, Any]:
    return {"peers": [asdict(row) for row in rows], "machine": machine()}
