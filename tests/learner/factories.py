"""Small data and models for a learner."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from metasp.learner import ContinualLearner
from metasp.methods import METHODS

_DIGITS = load_digits()
X = torch.tensor(_DIGITS.data / 16, dtype=torch.float32)
Y = torch.tensor(_DIGITS.target)
SHORT = {"gdumb": {"memory_epochs": 2}, "hal": {"anchor_steps": 2}}
KNOWN = [name for name in METHODS if name not in ("joint", "verified-only")]


def pair(number: int, count: int = 120) -> tuple[Tensor, Tensor]:
    """The classes 2k and 2k+1 of the digits."""
    rows = torch.nonzero(torch.isin(Y, torch.tensor([2 * number, 2 * number + 1]))).flatten()[
        :count
    ]
    return X[rows], Y[rows]


def net(outputs: int = 10, seed: int = 0, inputs: int = 64) -> nn.Module:
    """A network that draws from the global stream in every pass (dropout)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, outputs)
        )


def everything(learner: ContinualLearner) -> dict[str, bytes]:
    """All tensors that a learner is made of, as bytes by name."""
    return {
        name: tensor.numpy().tobytes() for name, tensor in learner._session.content()[0].items()
    }


def regression(shift: float, count: int = 96) -> tuple[Tensor, Tensor]:
    """Two numbers to learn from three, in another region of the inputs for each shift."""
    inputs = torch.rand(count, 3, generator=torch.Generator().manual_seed(int(10 * shift))) + shift
    targets = torch.stack([inputs.sum(1), inputs[:, 0] * inputs[:, 1]], 1)
    return inputs, targets


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


def quick(model=None, method="metasp-rehsel", **changes) -> ContinualLearner:
    """A learner that takes a second."""
    settings = {"memory": 20, "epochs": 2, "settings": SHORT.get(method, {}), **changes}
    return ContinualLearner(net() if model is None else model, method, **settings)


def stream_of(count: int, start: int = 0, size: int = 12):
    """Batches of the digits from number `start` on; their classes come one after the other."""
    for number in range(start, count):
        rows = torch.nonzero(2 + 8 * number // count > Y).flatten()
        dice = torch.Generator().manual_seed(number)
        chosen = rows[torch.randperm(len(rows), generator=dice)[:size]]
        yield X[chosen], Y[chosen]
