"""A global batch split over real processes, against one process with the whole of it."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from metasp.errors import UserError
from metasp.influence import Ranks, sp_influence
from metasp.influence.parallel import packed, unpacked
from tests.helpers import ROOT
from tests.influence.parallel_worker import STEPS, data, loss, make_net, train


def torchrun(count: int, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess:
    """The ranks' end."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={count}", *arguments],
        env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_split_over_ranks_as_in_one_process(tmp_path, count):
    done = torchrun(count, "-m", "tests.influence.parallel_worker", str(tmp_path))
    assert done.returncode == 0, done.stderr
    whole = train()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(count)]
    for name, value in whole.items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-10, atol=1e-13, msg=name)
    for other in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(other[name], value), name
    # One pseudo step: gradient, both goals, two for the influences, update; the second one adds
    # a gradient and a curvature.
    assert int(found[0]["reduced"]) == STEPS * (5 + 7)
    words = [(tmp_path / f"{rank}.txt").read_text() for rank in range(count)]
    assert all("another rank met a number that is not finite" in w for w in words[:-1])
    assert "of the batch gives a number that is not finite" in words[-1]


def test_what_is_packed_comes_back():
    like = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.float64), "c": torch.zeros(1)}
    one = {"a": torch.ones(2, 3), "b": torch.full((4,), 2.0, dtype=torch.float64)}
    two = {"a": torch.full((2, 3), 4.0)}
    total = packed((one, 1), like) + packed((two, 2), like)
    found = unpacked(total, like)
    assert set(found) == {"a", "b"}  # c was nowhere
    assert torch.equal(found["a"], torch.full((2, 3), 3.0))
    torch.testing.assert_close(found["b"], torch.full((4,), 2 / 3, dtype=torch.float64))
    assert not packed(None, like).isfinite().any()
    assert len(packed(None, like)) == len(total)


def test_without_a_process_group_one_sentence():
    with pytest.raises(UserError, match="start with torchrun"):
        Ranks()


def test_synchronised_batch_norm_is_refused_and_the_others_are_not(tmp_path):
    """A group of one rank, in which every layer could run on a CPU."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        pairs = [data(count, seed) for seed, count in enumerate((8, 4, 4))]
        for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.SyncBatchNorm(4)):
            model = make_net()
            model[1] = norm.double()
            if isinstance(norm, nn.SyncBatchNorm):
                with pytest.raises(UserError, match=r"^1 is a SyncBatchNorm.*use GroupNorm"):
                    sp_influence(model, loss, *pairs, lr=0.1, ranks=Ranks())
                continue
            shared = sp_influence(model, loss, *pairs, lr=0.1, ranks=Ranks())
            alone = sp_influence(model, loss, *pairs, lr=0.1)
            torch.testing.assert_close(shared.fused, alone.fused)
    finally:
        dist.destroy_process_group()


def test_one_rank_takes_the_step_of_its_optimizer(ranks):
    """SGD along 3 for the parameter of the loss; the other has no gradient and stays."""
    used, unused = (nn.Parameter(torch.ones(2)) for _ in range(2))
    ranks.descend((3 * used).sum(), torch.optim.SGD([used, unused], lr=0.1, weight_decay=0.0))
    torch.testing.assert_close(used.detach(), torch.full((2,), 0.7))
    assert torch.equal(unused.detach(), torch.ones(2))


def test_one_rank_hears_itself_and_gathers_its_own_columns(ranks):
    assert ranks.hear(b"a word") == b"a word"
    assert ranks.hear() == b""
    values = torch.arange(6.0).view(2, 3)
    whole, own = ranks.gather(values)
    assert torch.equal(whole, values)
    assert own == slice(0, 3)
