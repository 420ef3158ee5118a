"""A model whose passes are split over real processes, against one process."""

import json

import pytest
import torch
import torch.distributed as dist

from metasp.influence.parallel import Ranks, Share, copied, gathered, taken, total
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
    # One all-reduce of the parameters and one gathering of the outputs; for each BatchNorm one
    # exchange forward and one backward, however many ranks there are.
    reduced, collected, norms = json.loads((tmp_path / "talk.0.json").read_text())
    assert norms > 1
    assert (reduced, collected) == (1 + norms, 1 + norms)


def test_the_maps_between_shares_and_the_whole_have_derivatives_of_all_kinds():
    """Against finite differences, once and twice; one process is enough for that."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ranks = Ranks()

        def there_and_back(x):
            share = Share(ranks, len(x))
            (same,) = copied(ranks, (x,))
            return gathered(share, taken(share, same).sin()) * total(ranks, x.cos().sum(0))

        x = torch.randn(3, 2, dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(there_and_back, x)
        assert torch.autograd.gradgradcheck(there_and_back, x)
    finally:
        dist.destroy_process_group()
