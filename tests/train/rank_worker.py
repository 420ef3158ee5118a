"""One rank of a test under torchrun: runs in float64, and everything that they come to.
Usage: torchrun … -m tests.train.rank_worker FOLDER CASE…"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from metasp.data import load_benchmark
from metasp.events import Evaluated, TaskFinished
from metasp.influence.parallel import Ranks
from metasp.methods import METHODS
from metasp.processes import joined, leave
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.from_spec import complete

SMALL = {
    "limit_per_class": 13, "memory": 20, "epochs": 2, "batch_size": 7, "memory_batch": 6,
    "threads": 1, "tasks": 5,
}  # fmt: skip
OF = {
    "gdumb": {"settings": {"memory_epochs": 2}},
    "hal": {"settings": {"anchor_steps": 3}},
    "mir": {"settings": {"candidates": 12}},
    "verified-only": {"trusted": 2},
    "glc": {"trusted": 2},
    "metasp-robust": {"trusted": 2, "epochs": 3},
}


SINGLE = ("icarl",)  # its targets are float32, whatever the network


class InDouble:
    """The transform of a benchmark, for a network of float64."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __call__(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.inner(raw, generator).double()

    def undo(self, inputs: Tensor) -> Tensor:
        return self.inner.undo(inputs)


def ended(case: str, ranks: Ranks | None) -> dict[str, Tensor]:
    """All of the state, the influences and the scores of a run; a case is method, backbone and,
    where it is not 1, the number of pseudo steps."""
    method, backbone, *steps = case.split("/")
    more = dict(OF.get(method, {}))
    if backbone == "resnet18":  # its last maps are one pixel: rounding grows in every step
        more |= {"epochs": 1, "tasks": 2, "limit_per_class": 6}
    if steps:
        more["settings"] = {"pseudo_steps": int(steps[0])}
    spec = RunSpec(method=method, backbone=backbone, width=4, **{**SMALL, **more})
    benchmark = load_benchmark(spec)
    torch.set_num_threads(1)
    trainer = build_trainer(complete(spec, benchmark), benchmark, ranks)
    if method not in SINGLE:
        trainer.learner.model.double()
        trainer.learner.transform = InDouble(trainer.learner.transform)
    kept: dict[str, Tensor] = {}
    for event in trainer.run():
        if isinstance(event, TaskFinished):
            for name in ("stability", "plasticity", "fused", "id"):
                if name in event.influence:
                    kept[f"influence/{event.task}/{name}"] = torch.tensor(event.influence[name])
        if isinstance(event, Evaluated):
            kept[f"scores/{event.task}/{event.before}"] = torch.tensor(event.class_il)
    return {**kept, **trainer.state()[0]}


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    group = joined()
    for name in cases or [f"{method}/convnet" for method in METHODS]:
        found = ended(name, group)
        assert group is not None
        torch.save(found, Path(folder) / f"{name.replace('/', '-')}.{group.rank}.pt")
    leave()
