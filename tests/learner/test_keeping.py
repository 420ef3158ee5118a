"""What a learner that is kept in use needs: ids of any text, probabilities, accuracy while it
observes, versions to go back to, snapshots of a task, a log, and a model to take away."""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from metasp import ContinualLearner
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.memory import Memory
from metasp.types import Batch
from tests.helpers import ROOT
from tests.learner.factories import X, Y, everything, net, pair, quick, stream_of


def texts(first: int, count: int) -> list[str]:
    return [f"picture {number}.png" for number in range(first, first + count)]


def test_ids_that_are_text_are_the_names_of_examples_everywhere(tmp_path):
    """Beside a learner whose ids are the running numbers that the texts stand for."""
    named, plain = (quick(method="metasp", memory=30) for _ in range(2))
    for task in range(2):
        named.learn(pair(task, 40), ids=texts(40 * task, 40), progress=False)
        plain.learn(pair(task, 40), progress=False)
    named.save(tmp_path / "file")
    again = ContinualLearner.load(tmp_path / "file", net())
    for learner in (named, again):
        for table in ("influence", "suspects"):
            ours, theirs = (getattr(one, table)() for one in (learner, plain))
            numbers = [int(name.split()[1].split(".")[0]) for name in ours["id"].to_pylist()]
            assert numbers == theirs["id"].to_pylist()
            assert ours.drop_columns("id").equals(theirs.drop_columns("id"))
        assert learner.memory.table()["id"].to_pylist()[0].startswith("picture ")
        assert learner.judge(pair(0, 2), ids=["a", "b"])["id"].to_pylist() == ["a", "b"]
    gone = again.forget(["picture 3.png", "picture 1.png"])
    assert sorted(gone) == ["picture 1.png", "picture 3.png"]
    assert not {*gone} & {*again.influence()["id"].to_pylist()}
    assert again.removed[0]["ids"] == gone
    again.learn(pair(0, 4), ids=texts(0, 4), progress=False)  # two of them never come again
    assert len(again._trainer.tasks[-1].train) == 2
    (pinned,) = again.trust((X[:1], Y[:1]))
    assert again.forget(pinned) == [pinned]
    with pytest.raises(UserError, match="ids are whole numbers and were texts before"):
        again.learn(pair(0, 4), ids=range(4), progress=False)


def test_texts_of_a_stream_without_end_are_bounded():
    learner = ContinualLearner(nn.Linear(64, 10), "er", memory=5, window=5)
    for number in range(200):
        learner.observe((X[:12], Y[:12]), ids=texts(12 * number, 12))
    assert len(learner._session.history.ids.texts) < 1100
    assert learner.memory.table()["id"].to_pylist()[0].startswith("picture ")


def test_an_id_that_no_example_has_had_is_named():
    learner = quick(method="er").learn(pair(0, 40), ids=range(100, 140), progress=False)
    before = everything(learner)
    for ids in (7, [101, 140], 10**6):
        with pytest.raises(UserError, match=r"no example has had the id (7|140|1000000),"):
            learner.forget(ids)
    with pytest.raises(UserError, match="no example has had the id 'a'"):
        learner.forget("a")
    assert everything(learner) == before
    learner.forget(101)
    learner.forget([101, 102])  # what has gone before may go again
    stream = quick(net(), "er", memory=5, window=5)
    for batch in stream_of(8):
        stream.observe(batch)
    assert stream.forget(3) == [3]  # it left the memory long ago, and shall not come again
    with pytest.raises(UserError, match="no example has had the id 96"):
        stream.forget(96)


def test_probabilities_are_the_softmax_over_classes_seen():
    learner = quick(method="er").learn(pair(1), progress=False)
    found = learner.predict_proba(X[:50])
    raw = learner.outputs(X[:50])[:, 2:4].double().exp()
    torch.testing.assert_close(found.double(), raw / raw.sum(1, keepdim=True))
    assert torch.equal(torch.tensor(learner.classes)[found.argmax(1)], learner.predict(X[:50]))
    with pytest.raises(UserError, match="no class has been learned"):
        quick(method="er").predict_proba(X[:5])


def test_prequential_accuracy_is_that_of_a_loop_that_tests_then_trains(tmp_path):
    tested, plain = (ContinualLearner(net(), "er", memory=30, window=24) for _ in range(2))
    right = []
    for number, (inputs, labels) in enumerate(stream_of(30)):
        if number:
            right += (plain.predict(inputs) == labels).tolist()
        step = tested.observe((inputs, labels))[-1]
        plain.observe((inputs, labels))
        if number:
            assert step.numbers["prequential"] == pytest.approx(sum(right) / len(right))
            newest = right[-24:]
            assert step.numbers["prequential_newest"] == pytest.approx(sum(newest) / len(newest))
    assert "prequential" not in tested._session.history.learned[0]
    tested.save(tmp_path / "file")
    for learner in (tested, ContinualLearner.load(tmp_path / "file", net())):
        assert f"{sum(right) / len(right):.4f} over 348 observed examples" in learner.report()


def test_a_version_that_was_saved_comes_back_without_what_was_forgotten(tmp_path):
    learner = quick(method="er").learn(pair(0), ids=texts(0, 120), progress=False)
    learner.save(tmp_path / "good")
    good, version = everything(learner), learner.version
    learner.learn(pair(1), ids=texts(120, 120), progress=False)
    learner.observe(pair(2, 8))
    learner.finish()
    assert learner.version == version + 3
    assert learner.roll_back(tmp_path / "good") is learner
    assert (everything(learner), learner.version) == (good, version)
    learner.learn(pair(1), ids=texts(120, 120), progress=False)
    mine = str(learner.memory.table()["id"][0])
    learner.forget([mine, "picture 5.png", "picture 130.png"])
    learner.roll_back(tmp_path / "good")
    assert {mine, "picture 5.png"} & {*learner.memory.table()["id"].to_pylist()} == set()
    learner.learn(pair(1, 20), ids=texts(120, 20), progress=False)
    assert len(learner._trainer.tasks[-1].train) == 19  # nor does what came after the file
    with pytest.raises(UserError, match="another method or other settings"):
        quick(method="er", memory=21).roll_back(tmp_path / "good")


WORKER = """
import sys, torch
from metasp import ContinualLearner
from tests.learner.factories import net, pair, quick
torch.set_num_threads(1)
learner = quick(method="metasp", epochs=30)
learner.learn(pair(0), progress=False)
learner.learn(pair(1), test=pair(1), validation=0.2, patience=50, progress=False,
              snapshots=sys.argv[1] + "/snapshot", snapshot_seconds=0)
learner.save(sys.argv[1] + "/learner")
"""


def run_worker(folder, wait=True):
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", WORKER, folder], cwd=ROOT)
    assert not wait or process.wait(timeout=120) == 0
    return process


@pytest.mark.slow
def test_a_task_that_was_killed_goes_on_from_its_snapshot_to_the_same_bits(tmp_path):
    run_worker(tmp_path / "whole")
    killed = run_worker(tmp_path / "cut", wait=False)
    until = time.monotonic() + 60
    while not (tmp_path / "cut" / "snapshot").exists() and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "cut" / "learner").exists()
    run_worker(tmp_path / "cut")
    one, two = (ContinualLearner.load(tmp_path / name / "learner", net()) for name in
                ("whole", "cut"))  # fmt: skip
    assert everything(one) == everything(two)


def test_a_snapshot_goes_on_in_the_middle_and_one_of_another_task_does_not(tmp_path, caplog):
    path = tmp_path / "snapshot"
    whole, first, second = (quick(method="derpp") for _ in range(3))
    whole.learn(pair(0), progress=False)
    for number, _ in enumerate(first.stream(pair(0), snapshots=path, snapshot_seconds=0)):
        if number == 5:
            break  # as if it had been killed: the file stays
    with caplog.at_level(logging.INFO, "metasp"):
        steps = [e for e in second.stream(pair(0), snapshots=path) if isinstance(e, StepTaken)]
    assert (steps[0].epoch, steps[0].step) == (1, 1)
    assert "task 1 goes on from" in caplog.text
    assert everything(second) == everything(whole)
    other = quick(method="derpp").learn(pair(1), snapshots=path, progress=False)
    assert "is of another task, and is replaced" in caplog.text
    assert everything(other) == everything(quick(method="derpp").learn(pair(1), progress=False))


def test_the_log_tells_what_happens_and_when_a_rate_moves(caplog):
    def halving(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count)

    with caplog.at_level(logging.INFO, "metasp"):
        learner = quick(method="er", scheduler=halving, lr=0.1)
        learner.learn(pair(0), ids=range(120), progress=False)
        learner.forget([3, 4], reason="asked")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "task 1 begins with 120 examples",
        "the learning rate is 0.05 now, at task 1, epoch 2, step 1",
        "task 1 is learned",
        "forgot 2 examples (asked)",
    ]


def test_the_model_is_exported_as_a_program_of_its_own(tmp_path):
    """The recipe of docs/serving.md."""
    learner = quick(method="er").learn(pair(0), progress=False)
    model = learner.model.eval()
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (X[:4],), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(loaded(X[:50]), learner.outputs(X[:50]))


def test_a_killed_save_leaves_nothing_behind_the_next_one(tmp_path):
    learner = quick(method="er").learn(pair(0, 20), progress=False)
    stale = tmp_path / ".learner-1.metasp-tmp"
    stale.write_bytes(b"half a learner")
    (tmp_path / ".notes.tmp").write_text("the user's")
    learner.save(tmp_path / "learner-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.tmp", "learner-2"]


def test_a_default_type_a_huge_memory_and_a_lazy_layer(tmp_path):
    """Settings of the whole program and models that are rare."""
    torch.set_default_dtype(torch.float64)
    try:
        learner = quick(net().float(), "metasp-rehsel").learn(pair(0), test=pair(0), progress=False)
        learner.learn(pair(1), validation=0.2, progress=False)
        assert learner.model[0].weight.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(UserError, match="memory must be between 0 and 1e"):
        quick(memory=10**12)
    huge = Batch(torch.zeros(1, 10**7), torch.zeros(1).long(), torch.zeros(1).long())
    with pytest.raises(UserError, match="do not fit into working memory"):
        Memory(10**6).write(torch.tensor([0]), huge, 0)
    with pytest.raises(UserError, match="lazy layers"):
        quick(nn.Sequential(nn.LazyLinear(4)))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        hidden = checkpoint(nn.functional.tanh, self.body(x), use_reentrant=True)
        return self.head(hidden)


@pytest.mark.parametrize("method", ["er", "metasp"])
def test_reentrant_checkpointing_learns_or_is_one_sentence(method):
    learner = quick(Checkpointed(), method)
    if method == "er":
        assert learner.learn(pair(0), progress=False).tasks == 1
        return
    with pytest.raises(UserError, match="use_reentrant=False"):
        learner.learn(pair(0), progress=False).learn(pair(1), progress=False)
