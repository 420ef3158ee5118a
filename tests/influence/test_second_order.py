"""The tangents and the second order of calls that have no rule of ours, against differences."""

import pytest
import torch
import torch.nn.functional as F

from metasp.influence.fallback import again
from metasp.influence.second_order import Layout

STEP = 1e-6
EYE = torch.eye(4).double()


def normal(*shape):
    with torch.random.fork_rng():
        torch.manual_seed(sum(shape))
        return torch.randn(shape, dtype=torch.float64)


def positive(a):
    return a @ a.T + EYE


A, B, PICTURES = normal(4, 4), normal(4, 2), normal(2, 3, 5, 5)
CLASSES = torch.arange(4)
CALLS = {
    "solve": (torch.linalg.solve, A, B),
    "inverse": (torch.linalg.inv, A),
    "determinant": (torch.linalg.det, A),
    "log-determinant": (lambda a: torch.linalg.slogdet(a).logabsdet, A),
    "Cholesky": (lambda a: torch.linalg.cholesky(positive(a)), A),
    "triangular solve": (
        lambda a, b: torch.linalg.solve_triangular(a.triu() + 3 * EYE, b, upper=True), A, B,
    ),
    "LU solve": (lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), A, B),
    "eigenvalues": (lambda a: torch.linalg.eigvalsh(a + a.T), A),
    "singular values": (torch.linalg.svdvals, A),
    "QR": (lambda a: torch.linalg.qr(a).R, A),
    "matrix exponential": (torch.matrix_exp, A),
    "pseudo-inverse": (torch.linalg.pinv, A),
    "standard deviation": (lambda a: a.std(0), A),
    "cumulative product": (lambda a: a.cumprod(0), A),
    "group_norm": (lambda x: F.group_norm(x, 3), PICTURES),
    "instance_norm": (lambda x: F.instance_norm(x), PICTURES),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), PICTURES),
    "max pooling": (lambda x: F.adaptive_max_pool2d(x, 2), PICTURES),
    "silu": (F.silu, A),
    "mish": (F.mish, A),
    "glu": (F.glu, A),
    "huber": (lambda a: F.huber_loss(a, EYE + 2, reduction="none"), A),
    "smooth_l1": (lambda a: F.smooth_l1_loss(a, EYE / 2, reduction="none"), A),
    "binary cross entropy": (
        lambda a: F.binary_cross_entropy_with_logits(a, EYE, reduction="none"), A,
    ),
    "smoothed cross entropy": (
        lambda a: F.cross_entropy(a, CLASSES, label_smoothing=0.1, reduction="none"), A,
    ),
    "embedding": (lambda a: F.embedding(torch.tensor([1, 1, 2]), a), A),
    "Fourier transform": (lambda a: torch.fft.rfft(a).abs(), A),
    "log-gamma": (lambda a: torch.lgamma(a.exp()), A),
    "gelu": (F.gelu, A),
    "average pooling": (lambda x: F.avg_pool2d(x, 2, 1), PICTURES),
    "cross_entropy": (F.cross_entropy, A),
    "layer_norm": (F.layer_norm, A),
}  # fmt: skip
MORE = {"cross_entropy": (CLASSES,), "layer_norm": ((4,),)}


@pytest.mark.parametrize("name", CALLS)
def test_tangents_and_moves_of_gradients_are_those_of_differences(name):
    func, *values = CALLS[name]
    more = MORE.get(name, ())
    leaves = [v.clone().requires_grad_() for v in values]
    out = func(*leaves, *more)
    how = again(func, ((*leaves, *more), {}), leaves, out, None)
    delta, bent = normal(*out.shape), normal(1, *out.shape)
    moves = [normal(1, *v.shape) for v in values]

    def gradients(sign):
        ends = [(v + sign * STEP * s[0]).requires_grad_() for v, s in zip(values, moves)]
        return torch.autograd.grad(func(*ends, *more), ends, delta + sign * STEP * bent[0])

    wanted = [(up - down) / (2 * STEP) for up, down in zip(gradients(1), gradients(-1))]
    for part, known in zip(how.bend(moves, [delta], [bent], Layout()), wanted):
        torch.testing.assert_close(part[0], known, rtol=1e-5, atol=1e-6)
    (tangent,) = how.push(moves, Layout())
    up, down = (
        func(*(v + sign * STEP * s[0] for v, s in zip(values, moves)), *more) for sign in (1, -1)
    )
    torch.testing.assert_close(tangent[0], (up - down) / (2 * STEP), rtol=1e-5, atol=1e-6)
