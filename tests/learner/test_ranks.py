"""A learner on several real processes: what one process comes to, every rank alike."""

import pytest
import torch

from tests.influence.test_parallel import torchrun
from tests.learner.rank_worker import METHODS, learned, observed

EXACT = {"ids", "tasks", "labels", "predicted", "looks_like"}  # must not differ at all


@pytest.mark.slow
def test_a_learner_on_many_processes_comes_to_what_one_comes_to(tmp_path):
    count = 2
    done = torchrun(count, "-m", "tests.learner.rank_worker", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (alone := tmp_path / "alone").mkdir()
    whole = {method: learned(method, alone, rank=0) for method in METHODS}
    whole["observed"] = observed(alone, rank=0)
    for case, expected in whole.items():
        found = [
            torch.load(tmp_path / f"{case}.{rank}.pt", weights_only=True) for rank in range(count)
        ]
        assert expected.keys() == found[0].keys()
        for name, value in expected.items():
            for other in found[1:]:
                assert found[0][name].equal(other[name]) or value.isnan().any(), f"{case} {name}"
            near = 0 if name.split("/")[-1] in EXACT else 1e-8
            torch.testing.assert_close(
                found[0][name], value, rtol=near, atol=near, equal_nan=True,
                msg=lambda words, case=case, name=name: f"{case} {name}: {words}",
            )  # fmt: skip
    for rank in range(count):
        words = (tmp_path / f"refused.{rank}.txt").read_text()
        assert words.startswith("the processes were not given the same dataset: give all of them")
