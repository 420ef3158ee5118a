"""A model whose passes are split over real processes, against one process."""

import pytest
import torch

from tests.influence.splitting_worker import compute
from tests.influence.test_parallel import torchrun


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_values_and_derivatives_of_every_order_are_those_of_one_process(tmp_path, count):
    done = torchrun(count, "-m", "tests.influence.splitting_worker", str(tmp_path))
    assert done.returncode == 0, done.stderr
    whole = compute()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(count)]
    assert whole.keys() == found[0].keys()
    for name, value in whole.items():
        for other in found[1:]:
            assert torch.equal(found[0][name], other[name]), name
        torch.testing.assert_close(
            found[0][name], value, rtol=1e-10, atol=1e-12,
            msg=lambda words, name=name: f"{name}: {words}",
        )  # fmt: skip
    assert any(name.endswith("path/tape") for name in whole)
