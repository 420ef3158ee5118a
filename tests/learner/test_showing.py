"""What a learner shows of itself (suspects, a page, a report), and how it computes."""

import json
import re

import numpy as np
import pytest
import torch

from metasp import ContinualLearner
from metasp.errors import UserError
from tests.learner.factories import X, everything, net, pair, quick, regression, squares


def dirty(number: int, share: float = 0.15) -> tuple[torch.Tensor, torch.Tensor, set[int]]:
    """Two classes with some labels swapped, and the rows where."""
    inputs, labels = pair(number, 160)
    wrong = torch.randperm(160, generator=torch.Generator().manual_seed(number))[: int(160 * share)]
    labels = labels.clone()
    labels[wrong] = 4 * number + 1 - labels[wrong]
    return inputs, labels, set(wrong.tolist())


@pytest.fixture(scope="module")
def learner():
    made = ContinualLearner(net(), "metasp", memory=20, epochs=15, settings={"influence_last": 2})
    for number in range(2):
        inputs, labels, _ = dirty(number)
        test = pair(number, 400)
        made.learn((inputs, labels), test=test, progress=False)
    return made


def dirty_numbers():
    """A learner of two tasks whose labels are numbers, of which some are far off; all numbers, and
    the ids of those."""
    parts = [regression(shift, 80) for shift in (0.0, 2.0)]
    targets = torch.cat([part[1][:, :1] for part in parts])
    wrong = range(3, 160, 16)
    for place in wrong:
        targets[place] += 8.0 if place % 32 < 16 else -8.0
    learner = quick(net(1, inputs=3), "er", loss_fn=squares, epochs=20, lr=0.02, memory=20)
    for task, (inputs, _) in enumerate(parts):
        learner.learn((inputs, targets[80 * task : 80 * task + 80]), progress=False)
    return learner, targets[:, 0], {*wrong}


def data_of(page: bytes) -> dict:
    """What the page's script reads."""
    found = re.search(rb'id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def test_suspects_are_the_wrong_labels(learner):
    found = learner.suspects(top=48)
    wrong = dirty(0)[2] | {160 + row for row in dirty(1)[2]}
    hits = len({*found.column("id").to_pylist()} & wrong)
    assert hits / 48 > 0.6  # of which 15% would be hit by chance
    odds = found.column("odds").to_pylist()
    assert odds == sorted(odds)
    assert 0 < learner.suspects().num_rows < 160
    labels = torch.cat([dirty(0)[1], dirty(1)[1]])
    for row in found.to_pylist():
        assert row["label"] == int(labels[row["id"]])
        assert row["task"] == row["id"] // 160
    by = learner.suspects(by="loss", top=5).column("loss").to_pylist()
    assert by == sorted(by, reverse=True)
    with pytest.raises(UserError, match="unknown way to rank"):
        learner.suspects(by="losses")


def test_a_page_of_what_was_measured_and_is_held(learner, tmp_path):
    place = learner.explore(tmp_path / "in" / "page.html")
    told = data_of(place.read_bytes())
    run = told["runs"][0]
    assert (run["method"], run["backbone"], run["finished"]) == ("metasp", "Sequential", True)
    points, table = run["points"], learner.influence()
    measured = [row["id"] for row in table.to_pylist() if row["count"]]
    assert sorted({*points["id"]}) == measured
    held = set()
    for step in run["memory"]:
        held |= {entry[0] for entry in step["entered"]}
        held -= {entry[0] for entry in step["left"]}
    assert held == {*learner.memory.ids.tolist()}
    assert run["scenarios"]["class_il"]["matrix"][1][0] == pytest.approx(
        learner.score(pair(0, 400))
    )
    assert told["pictures"]["kind"] == "rows"
    assert sorted(told["pictures"]["ids"]) == sorted(learner.memory.ids.tolist())
    assert told["classes"][:4] == ["0", "1", "2", "3"]


def test_words_are_shown_as_words(learner, tmp_path):
    known = int(learner.memory.ids[0])
    words = {known: "a <b> & c", 10**6: "nobody's"}
    place = learner.explore(tmp_path / "page.html", words=words)
    page = place.read_bytes()
    told = data_of(page)["pictures"]
    assert told == {"kind": "texts", "values": ["a <b> & c"], "ids": [known]}
    assert b"a <b> & c" not in page  # no markup can come in this way


def test_a_report(learner):
    text = learner.report()
    assert "# metasp on Sequential" in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["1", "2"]
    assert [row[2:4] for row in cells] == [["160", "0, 1"], ["160", "2, 3"]]
    assert sum(int(row[4]) for row in cells) == 20
    now = learner.score(pair(0, 400))
    assert float(cells[0][7]) == pytest.approx(now, abs=1e-4)
    assert "labels look wrong" in text


def test_files_hold_them_and_forgetting_takes_them(learner, tmp_path):
    learner.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", net())
    assert again.suspects(top=20).equals(learner.suspects(top=20))
    assert again.report() == learner.report()
    gone = again.suspects(top=20).column("id").to_pylist()[:7]
    again.forget(gone, reason="asked")
    assert not {*gone} & {*again.suspects(top=320).column("id").to_pylist()}
    again.save(tmp_path / "without")
    last = ContinualLearner.load(tmp_path / "without", net())
    assert last.suspects(top=320).num_rows == 313
    told = data_of(last.explore(tmp_path / "page.html").read_bytes())
    assert not {*gone} & {*told["runs"][0]["points"]["id"]}
    assert "7 examples were forgotten" in last.report()
    for table in again._session.history.records.tables.values():
        assert not np.isin(table["id"].to_numpy(), gone).any()


def test_what_cannot_be_shown_says_why(tmp_path):
    fresh = quick(method="er")
    for ask in (fresh.suspects, lambda: fresh.explore(tmp_path / "page.html")):
        with pytest.raises(UserError, match="learn a task"):
            ask()
    assert "0 tasks" in fresh.report()
    curve = quick(net(2, inputs=3), "er", loss_fn=squares).learn(regression(0), progress=False)
    assert curve.suspects(top=3).column("target").null_count == 3  # two numbers each
    with pytest.raises(UserError, match="classes or single numbers"):
        curve.explore(tmp_path / "page.html")
    assert "| 1 |" in curve.report()


def test_numbers_that_look_wrong_are_found(tmp_path):
    learner, targets, wrong = dirty_numbers()
    found = learner.suspects()
    ids = found.column("id").to_pylist()
    assert {*ids} == wrong
    assert found.column("target").to_pylist() == pytest.approx(targets[ids].tolist())
    far = np.abs(found.column("target").to_numpy() - found.column("said").to_numpy())
    assert far.min() > 4  # of the seven or more by which they were moved
    assert "about 10 of 160 labels look wrong" in learner.report()
    told = data_of(learner.explore(tmp_path / "page.html").read_bytes())
    assert told["numbers"]
    assert told["runs"][0]["scores"]["ways"]["loss"]["expected"] == 10


def test_half_precision_is_that_of_a_run(tmp_path):
    whole = quick(method="metasp").learn(pair(0), progress=False)
    half = quick(method="metasp", precision="bf16").learn(pair(0), progress=False)
    ours, theirs = half.outputs(X[:20]), whole.outputs(X[:20])
    assert ours.dtype == torch.float32
    assert torch.equal(ours, ours.bfloat16().float())  # the last layer computed in bf16
    assert not torch.equal(ours, theirs)
    half.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", net())
    for each in (half, again):
        each.learn(pair(1), progress=False)
    assert everything(half) == everything(again)
    with pytest.raises(UserError, match="precision"):
        quick(precision="fp8")


@pytest.mark.slow
def test_a_compiled_learner_learns_what_an_uncompiled_one_does(tmp_path):
    plain, fast = quick(method="er", seed=3), quick(method="er", seed=3, compile=True)
    for each in (plain, fast):
        each.learn(pair(0, 40), progress=False)
    assert fast._trainer.learner.compiled
    for ours, theirs in zip(fast.model.parameters(), plain.model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    fast.save(tmp_path / "learner")
    assert ContinualLearner.load(tmp_path / "learner", net()).settings.compile
