"""The step benchmark: where it measures, and what it shows beside it."""

import pytest
from benchmarks.step import (
    BEGINS,
    JUDGED,
    LIMITS,
    LINES,
    MEMORY,
    VERIFIED,
    at_third_task,
    measure,
    paper_ratios,
    render,
    spread_over_an_epoch,
    steps,
)
from benchmarks.timing import Timing


def test_it_measures_in_the_third_task_with_a_full_memory_of_the_first_two():
    gem = at_third_task("gem", "convnet", 2)
    assert gem.position.task == 2
    assert gem.method.past_tasks() == [0, 1]
    assert len(gem.learner.memory) == MEMORY
    assert [int((gem.learner.memory.tasks == task).sum()) for task in (0, 1)] == [250, 250]
    hal = at_third_task("hal", "convnet", 2)
    assert len(hal.method.anchors) == 4
    assert len(at_third_task("finetune", "convnet", 2).learner.memory) == 0


def test_labels_are_judged_when_an_epoch_begins_and_in_no_other_step(monkeypatch):
    from metasp.methods.robust import RobustWeights

    judged = []
    weigh = RobustWeights.__call__

    def watch(self, learner, objective):
        before = self.epoch
        weighed = weigh(self, learner, objective)
        judged.append((before != self.epoch, "doubted" in weighed.numbers))
        return weighed

    calls = steps("metasp-robust", "convnet", 2)
    monkeypatch.setattr(RobustWeights, "__call__", watch)
    for _ in range(2):
        for call in calls.values():
            call()
    assert judged == [(True, True), (False, True)] * 2
    trainer = at_third_task("derpp + robust", "convnet", 2)
    memory = trainer.learner.memory
    assert (int(memory.pinned.sum()), len(trainer.learner.current)) == (VERIFIED, JUDGED)
    assert set(memory.labels[memory.pinned].tolist()) == set(range(6))


def test_what_an_epoch_begins_with_is_spread_over_its_steps():
    found = spread_over_an_epoch(
        {"a" + BEGINS: Timing(41, 22, 61), "a": Timing(1, 2, 1), "b": Timing(3, 3, 3)}
    )
    assert {name: vars(timing) for name, timing in found.items()} == {
        "a": {"median": pytest.approx(3), "low": pytest.approx(3), "high": pytest.approx(4)},
        "b": vars(Timing(3, 3, 3)),
    }


def test_the_published_ratios():
    found = {name: round(ratio, 1) for name, ratio in paper_ratios().items()}
    assert found == {
        "er": 1.0,
        "gss": 1.2,
        "agem": 2.2,
        "hal": 3.3,
        "mir": 5.9,
        "gmed": 7.2,
        "gem": 22.3,
        "metasp": 19.2,
    }


@pytest.mark.slow
def test_every_method_has_its_line():
    rows = measure(rounds=1, backbone="convnet", width=2)
    assert {row.method for row in rows} == set(LINES)
    assert next(row.ratio for row in rows if row.method == "er") == 1.0
    assert all(row.seconds > 0 for row in rows)
    assert {row.method: row.limit for row in rows if row.limit} == LIMITS
    lines = render(rows)
    assert len(lines) == len(LINES) + 5
    assert "22.3" in next(line for line in lines if line.startswith("gem "))
