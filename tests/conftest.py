"""Shared by all tests: one thread and the same drawn cases, so that what a test finds does not hang
on the machine, and this tree in every process that a test starts."""

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import pytest
import torch

from metasp.experiment import Experiment, prepare
from metasp.spec import RunSpec
from tests.helpers import ROOT

torch.set_num_threads(1)
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")
# Without it a process that a test starts would run the package as it is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
)

TINY = {"method": "er", "epochs": 1, "limit_per_class": 40, "threads": 1, "memory": 50}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: one that came last would leave the other worker idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch):
    """What one test does to PyTorch's threads and random state does not reach the next, each draws
    the same numbers in whatever order they run, and no test writes to the runs of the person who
    starts it."""
    for name in ("METASP_RUNS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(1)


@pytest.fixture
def tiny(tmp_path: Path):
    """An experiment small enough to run in a second, with the given changes."""

    def make(folder: str = "runs", options: dict | None = None, **changes) -> Experiment:
        return prepare(RunSpec(**{**TINY, **changes}), tmp_path / folder, **(options or {}))

    return make
