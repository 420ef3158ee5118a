"""The public names as a user's type checker sees them: checked with mypy."""

import inspect
import json
import re
import subprocess
import sys

import pytest

import metasp
from tests.helpers import ROOT

pytestmark = pytest.mark.slow  # a type checker reads all of the package

CONSUMER = """
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import metasp

result = metasp.run(method="metasp", epochs=1, gamma=0.5, classes_per_task=[2, 8], runs="here")
percent: float = 100 * result["class_il"]["A_inf"]
lost: float | None = result["task_il"]["BWT"]
folder: str = result["run"]
method: str = result["spec"]["method"]["name"]

x, y = torch.rand(20, 3), torch.randint(2, (20,))
net = nn.Linear(3, 2)


def losses(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


loss_fn = partial(F.cross_entropy, reduction="none")
found = metasp.sp_influence(net, loss_fn, (x, y), (x, y), (x, y), lr=0.1, gamma=0.5)
worst: int = int(found.fused.argmax())
alone: Tensor = metasp.example_influence(net, losses, (x, y), (x, y), lr=0.1)
gamma: float = metasp.fuse(found.stability, found.plasticity).gamma

learner = metasp.ContinualLearner(net, "er", loss_fn=squares, memory=10, settings={"rule": "x"})
rows = TensorDataset(x, y)
for data in (rows, DataLoader(rows), (x, y), (x.numpy(), y.tolist()), [(x[0], y[0])]):
    learner.learn(data, ids=range(20), test=rows)
learner.learn((x, y)).predict(x.numpy()).tolist()
names: list[str] = learner.influence().column_names
learner.forget([1, 2])
gone: list[int] = learner.forget(predicate=lambda row: row["count"] > 3 and not row["in_memory"])
why: str = learner.removed[0]["reason"]
again: metasp.ContinualLearner = metasp.ContinualLearner.load("file", net, loss_fn=squares)
stream = metasp.split(rows, tasks=2, class_order="shuffled", domains=["a", "b"])
metasp.run(stream)
spec = metasp.RunSpec(epochs=3)
"""
MISTAKES = """
import metasp
metasp.rnu
metasp.RunSpec(epoch=1)
metasp.RunSpec(epochs="many")
metasp.run()["class_ill"]
metasp.ContinualLearner(3)
metasp.split([], tasks="big")
"""


def checked(folder, **scripts: str) -> dict[str, list[tuple[int, str, str]]]:
    """What mypy --strict says of each script: (line, severity, message)."""
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    command = [
        sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--output=json",
        "--cache-dir", ROOT / ".mypy_cache", *(f"{name}.py" for name in scripts),
    ]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "MYPYPATH": str(ROOT / "src"), "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    said: dict[str, list[tuple[int, str, str]]] = {name: [] for name in scripts}
    for line in map(json.loads, done.stdout.splitlines()):
        entry = line["line"], line["severity"], line["message"]
        said[line["file"].removesuffix(".py")].append(entry)
    return said


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("consumer")
    names = "\n".join(["import metasp", *(f"reveal_type(metasp.{name})" for name in metasp.PUBLIC)])
    return checked(folder, consumer=CONSUMER, mistakes=MISTAKES, names=names)


def test_a_users_script_is_well_typed(seen):
    assert seen["consumer"] == []


def test_a_users_mistakes_are_seen(seen):
    wrong = {line for line, severity, _ in seen["mistakes"] if severity == "error"}
    assert wrong == set(range(3, 3 + len(MISTAKES.splitlines()) - 2))


def test_every_public_name_has_a_type(seen):
    revealed = [text for _, severity, text in seen["names"] if severity == "note"]
    assert len(revealed) == len(metasp.PUBLIC)
    assert not [text for text in revealed if text == 'Revealed type is "Any"']


def test_what_a_checker_knows_is_what_there_is():
    stated = re.findall(r"from (\S+) import (\w+) as \2", inspect.getsource(metasp))
    assert {name: module for module, name in stated} == metasp.PUBLIC
