"""The comparison with cleanlab: out of sample, on the same examples, for all ways alike."""

import numpy as np
import pytest

from metasp.data import load_benchmark

pytest.importorskip("cleanlab", reason="cleanlab is not installed: pip install -e '.[libraries]'.")

from benchmarks.cleanlab import as_json, detected, measure, out_of_sample, render, spec_of

pytestmark = pytest.mark.slow

NOISE = {"label_noise": 0.4}


def test_probabilities_are_of_networks_that_did_not_see_the_example(monkeypatch):
    spec = spec_of("split-digits", 20, 1, {**NOISE, "epochs": 1})
    stream = load_benchmark(spec)
    seen: list[set[int]] = []
    build = out_of_sample.__globals__["build_trainer"]
    look = out_of_sample.__globals__["all_scores"]

    def building(done, benchmark):
        seen.append(set(benchmark.tasks[0].train.ids.tolist()))
        return build(done, benchmark)

    def looking(learner, examples):
        assert not seen[-1] & set(examples.ids.tolist())
        assert len(seen[-1]) + len(examples) == len(stream.tasks[0].train)
        return look(learner, examples)

    monkeypatch.setitem(out_of_sample.__globals__, "build_trainer", building)
    monkeypatch.setitem(out_of_sample.__globals__, "all_scores", looking)
    chances = out_of_sample(spec, stream)
    assert len(seen) == 5
    assert np.allclose(chances.sum(1), 1)
    assert (chances > 0).all()


def test_all_ways_rank_the_same_examples_and_find_what_is_wrong():
    spec = spec_of("split-digits", 60, 1, NOISE)
    found = detected(spec, None)
    assert {name.partition(":")[0] for name in found} == {
        "er", "er, 10 verified", "metasp-robust", "metasp-robust, 10 verified", "cleanlab",
    }  # fmt: skip
    assert all(entry["scored"] == 1 for entry in found.values())
    assert found["er: margin"]["area"] > 0.9
    assert found["cleanlab: self_confidence"]["area"] > 0.85


def test_it_is_told_as_a_table_and_as_an_object():
    cases = [("split-digits", "symmetric .4", {**NOISE, "epochs": 1})]
    rows = measure(None, 20, [1, 2], cases=cases)
    assert all(len(row.area) == 2 for row in rows)
    lines = render(rows)
    shown = [row for row in rows if row.shown]
    assert [row.ranked_by for row in shown] == [
        "er: odds",
        "er, 10 verified: odds",
        "metasp-robust: odds",
        "metasp-robust, 10 verified: odds",
    ]
    told = lines[len(rows) + 2 :]
    assert len(told) == 2 + 1 + len(shown) + 1
    best = max(sum(row.area) / 2 for row in rows if row.ranked_by.startswith("cleanlab"))
    assert f"{best:.3f}" in told[2]
    for row, line in zip(shown, told[3:]):
        assert f"{sum(row.area) / 2:.3f}" in line
        assert ("behind in area" in line) == (sum(row.area) / 2 < best)
    assert "means of 2 seeds; cleanlab" in lines[-1]
    assert len(as_json(rows)["cleanlab"]) == len(rows)
