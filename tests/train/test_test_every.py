"""Testing after every N-th task: fewer rows of the same matrix, and the same training."""

import pyarrow.parquet as pq
import pytest

import metasp
from metasp.metrics import SCENARIOS

SETTINGS = {"method": "er", "epochs": 1, "limit_per_class": 20, "threads": 1, "memory": 20}
TESTED = (2, 4)  # of five tasks, from 0, with test_every=3 (the last is always one)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, tested after every task and after every third."""
    folder = tmp_path_factory.mktemp("runs")
    return [metasp.run(runs=folder, test_every=n, **SETTINGS) for n in (1, 3)]


def test_the_tested_rows_are_those_of_the_run_that_tests_always(runs):
    whole, some = runs
    for scenario in SCENARIOS:
        for t, row in enumerate(some[scenario]["matrix"]):
            tested = whole[scenario]["matrix"][t] if t in TESTED else [None] * 5
            assert row == tested
        assert some[scenario]["before"] == whole[scenario]["before"]
        assert some[scenario]["A_inf"] == whole[scenario]["A_inf"]
    held = [pq.read_table(f"{run['run']}/memory/task-004.parquet") for run in runs]
    assert held[0]["id"].equals(held[1]["id"])
