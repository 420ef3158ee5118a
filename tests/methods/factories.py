"""Small real runs for the tests of methods."""

import copy
from dataclasses import replace

import torch

from metasp.data import Benchmark, Source, Transform, load_benchmark, split
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.from_spec import complete

BRIEF = {
    "gdumb": {"memory_epochs": 3},
    "hal": {"anchor_steps": 4},
    "ridge": {"random_features": 64},
}
"""Settings that keep a run short without changing what it does."""

TELLING = {
    "gdumb": {"memory_epochs": 3, "train_batch": 8},
    "glc": {"correct_from": 2},
    "gmed": {"edit_decay": 0.3},
    "hal": {"anchor_steps": 4},
    "loss-filter": {"per_class": True},
    "ridge": {"random_features": 64, "weigh_labels": True},
    "metasp": {"every": 2, "running": True, "influence_last": 2},
    "metasp-rehsel": {"influence_last": 2, "shuffle_influence": True},
    "metasp-only-s": {"influence_last": 2, "scope": "head", "reuse": 3},
}
"""Settings under which all that a method keeps across a stop has a say in its result."""


def digits(method, **changes):
    """A trainer at the start of split-digits with few examples per class."""
    spec = small(method, **changes)
    benchmark = load_benchmark(spec)
    return build_trainer(complete(spec, benchmark), benchmark)


def small(method, **changes):
    values = {
        "trusted": int(method == "verified-only"),
        "settings": BRIEF.get(method, {}),
        "limit_per_class": 12,
        "memory": 20,
        "batch_size": 8,
        "memory_batch": 8,
        "epochs": 2,
        "width": 4,
        "threads": 1,
        "device": "cpu",
    }
    return RunSpec(method=method, **{**values, **changes})


def blobs(counts, shape=(1, 6, 6), tasks=None):
    """A benchmark with `counts[k]` train examples of class k around a centre of its own."""
    generator = torch.Generator().manual_seed(5)
    centres = torch.rand(len(counts), *shape, generator=generator)
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    noise = torch.randn(len(labels), *shape, generator=generator)
    inputs = centres[labels] + 0.1 * noise
    tests = torch.arange(len(counts)).repeat_interleave(3)
    source = Source(
        "blobs", inputs, labels, centres[tests], tests, tuple(map(str, range(len(counts)))),
        (0.5,) * shape[0], (0.3,) * shape[0], "none", tasks or len(counts) // 2,
    )  # fmt: skip
    return Benchmark(source, split(source), Transform(source.mean, source.std))


def on(benchmark, method, **changes):
    """A trainer at the start of a benchmark made by hand."""
    spec = small(method, **{"limit_per_class": None, "trusted": 0, **changes})
    if method == "verified-only":
        benchmark = replace(benchmark, tasks=[with_trusted_copies(t) for t in benchmark.tasks])
    return build_trainer(complete(spec, benchmark), benchmark)


def with_trusted_copies(task):
    """The task with a verified copy of its first examples, under ids of their own."""
    copies = task.train.only(torch.arange(min(2, len(task.train))))
    return replace(task, trusted=replace(copies, ids=copies.ids + 10_000))


def fill(trainer, tasks=1, each=10):
    """Put examples of the first tasks into memory."""
    memory = trainer.learner.memory
    for task in trainer.tasks[:tasks]:
        slots = memory.empty[:each]
        memory.write(slots, task.train.take(torch.arange(len(slots))), task.index)
    memory.offered = len(memory)


def train(trainer, steps):
    """Take some steps of the run."""
    for event in trainer.run():
        steps -= type(event).__name__ == "StepTaken"
        if not steps:
            return


def finish(trainer):
    """Run to the end; the events as text without times."""
    return [without_seconds(event) for event in trainer.run()]


def without_seconds(event):
    text = copy.copy(vars(event))
    text.pop("seconds", None)
    return type(event).__name__, repr(text)


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.learner.model.parameters()])


def everything(trainer):
    """Copies of all that a pass without trace must not move."""
    learner = trainer.learner
    tensors, _ = trainer.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    kept["global random state"] = torch.get_rng_state()
    for name, module in learner.model.named_modules():
        kept[f"mode of {name}"] = torch.tensor(module.training)
    for name, parameter in learner.model.named_parameters():
        if parameter.grad is not None:
            kept[f"grad of {name}"] = parameter.grad.clone()
    return kept


def changed(before, after):
    """The names of what is no longer the same, to the bit."""
    assert before.keys() == after.keys()
    bits = {
        name: (a.numpy().tobytes(), after[name].numpy().tobytes()) for name, a in before.items()
    }
    return [name for name, (old, new) in bits.items() if old != new]
