"""The step benchmark: where it measures, and what it shows beside it."""

import pytest
from benchmarks.step import LIMITS, MEMORY, at_third_task, measure, paper_ratios, render

from metasp.methods import METHODS


def test_it_measures_in_the_third_task_with_a_full_memory_of_the_first_two():
    gem = at_third_task("gem", "convnet", 2)
    assert gem.position.task == 2
    assert gem.method.past_tasks() == [0, 1]
    assert len(gem.learner.memory) == MEMORY
    assert [int((gem.learner.memory.tasks == task).sum()) for task in (0, 1)] == [250, 250]
    hal = at_third_task("hal", "convnet", 2)
    assert len(hal.method.anchors) == 4
    assert len(at_third_task("finetune", "convnet", 2).learner.memory) == 0


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
    assert {row.method for row in rows} == set(METHODS)
    assert next(row.ratio for row in rows if row.method == "er") == 1.0
    assert all(row.seconds > 0 for row in rows)
    assert {row.method: row.limit for row in rows if row.limit} == LIMITS
    lines = render(rows)
    assert len(lines) == len(METHODS) + 3
    assert "22.3" in next(line for line in lines if line.startswith("gem "))
