"""Second order from the tape, and the memory format in which virtual passes run."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.influence import sp_influence
from metasp.types import CROSS_ENTROPY as LOSS

N = 6
SEEN = []


class Pictures(nn.Module):
    """Two convolutions with BatchNorm, a residual sum in place, and pooling."""

    def __init__(self, viewed=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(16, 4)
        self.viewed = viewed

    def forward(self, x):
        x = self.first(x)
        SEEN.append(x.detach())
        x = F.relu(self.norm(x))
        x = F.relu_(self.second(x).add_(x))
        x = F.avg_pool2d(x, 4)
        return self.head(x.view(len(x), -1) if self.viewed else x.flatten(1))


def data(*shape, dtype=torch.float64):
    return torch.randn(N, *shape, dtype=dtype), torch.arange(N) % 4


@pytest.mark.parametrize("viewed", [False, True])
def test_virtual_passes_run_channels_last_unless_the_model_looks(viewed):
    """A view of pictures fails on another memory format, so such a model keeps its own."""
    torch.manual_seed(3)
    model = Pictures(viewed)
    batch, old, new = (data(3, 8, 8, dtype=torch.float32) for _ in range(3))
    SEEN.clear()
    found = sp_influence(model, LOSS, batch, old, new, lr=0.1, steps=2)
    last = [x.is_contiguous(memory_format=torch.channels_last) for x in SEEN]
    assert last == [False, *[not viewed] * 4]  # the batch, its next step, two goals, second order
    double = Pictures().double()
    double.load_state_dict(model.state_dict())
    wanted = sp_influence(
        double, LOSS, *((x.double(), y) for x, y in (batch, old, new)), lr=0.1, steps=2
    )
    torch.testing.assert_close(found.fused.double(), wanted.fused, atol=1e-5, rtol=1e-3)
