"""The closed form against a search along the segment, and the cases without one answer."""

import pytest
import torch

from metasp.errors import UserError
from metasp.influence import fuse


def vectors(seed, n=9):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, n, generator=generator, dtype=torch.float64).unbind()


@pytest.mark.parametrize("seed", range(20))
def test_nothing_on_the_segment_is_nearer_to_zero(seed):
    s, p = vectors(seed)
    p = p * 0.2 + s * (seed % 3)  # all three cases: inside and at both ends
    r = fuse(s, p)
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    lengths = (grid[:, None] * s + (1 - grid[:, None]) * p).norm(dim=1)
    assert r.fused.norm() <= lengths.min() + 1e-12
    assert abs(r.gamma - grid[lengths.argmin()]) <= 1e-3
    torch.testing.assert_close(r.fused, r.gamma * s + (1 - r.gamma) * p)


def test_equal_vectors_share_the_weight():
    s, _ = vectors(0)
    r = fuse(s, s.clone())
    assert r.gamma == 0.5
    torch.testing.assert_close(r.fused, s)


def test_zero_vectors():
    s, _ = vectors(0)
    zero = torch.zeros_like(s)
    assert fuse(zero, zero).gamma == 0.5
    assert not fuse(zero, zero).fused.any()
    assert fuse(zero, s).gamma == 1.0
    assert not fuse(zero, s).fused.any()
    assert fuse(s, zero).gamma == 0.0
    assert not fuse(s, zero).fused.any()


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150, 1e300])
def test_scale_does_not_matter(scale):
    s, p = vectors(4)
    assert fuse(s * scale, p * scale).gamma == pytest.approx(fuse(s, p).gamma)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite(bad):
    s, p = vectors(1)
    p[4] = bad
    with pytest.raises(UserError, match="plasticity influence of example 4"):
        fuse(s, p)
    with pytest.raises(UserError, match="stability influence of example 4"):
        fuse(p, s)


def test_shapes():
    with pytest.raises(UserError, match="one length"):
        fuse(torch.zeros(3), torch.zeros(4))


def test_given_gamma():
    s, p = vectors(2)
    assert torch.equal(fuse(s, p, gamma=0.0).fused, p)
    with pytest.raises(UserError, match="between 0 and 1"):
        fuse(s, p, gamma=1.5)
