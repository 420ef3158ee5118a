"""One rank of a test under torchrun: a model that is split over the ranks, and what it comes to.
Usage: torchrun … -m tests.influence.splitting_worker FOLDER"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metasp.backbones.networks import ConvNet
from metasp.influence import Ranks, record, sp_influence
from metasp.influence.fallback import double_backward
from metasp.influence.functional import Origin, Problem
from metasp.influence.sharding import split_over_ranks
from metasp.methods.network_copies import features_seen
from metasp.processes import joined, leave


class Dropping(nn.Module):
    """A network with BatchNorm over rows and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10, momentum=None), nn.ReLU(),
            nn.Dropout(0.4),
        )  # fmt: skip
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Attending(nn.Module):
    """Dropout of attention, after it, of sequences before rows, and of images channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.3, batch_first=True)
        self.first = nn.MultiheadAttention(8, 2, dropout=0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x.flatten(1, 2)).transpose(0, 1)
        weighed = self.first(x, x, x, need_weights=True)[0]
        x = F.dropout(x + weighed, 0.3, self.training).transpose(0, 1)
        images = x.unflatten(2, (4, 2)).contiguous(memory_format=torch.channels_last)
        return self.head(F.dropout(images, 0.3, self.training).flatten(2).mean(1))


def networks(ranks: Ranks | None) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    found = {"convnet": ConvNet((1, 8, 8), 4, 4), "dropping": Dropping(), "attending": Attending()}
    if ranks is not None:  # torch's own synchronised layers are the same
        found["convnet"] = nn.SyncBatchNorm.convert_sync_batchnorm(found["convnet"])
    for model in found.values():
        model.double()
        if ranks is not None:
            split_over_ranks(model, ranks)
    return found


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, 8, 8, generator=random, dtype=torch.float64)
    return inputs, torch.randint(0, 4, (count,), generator=random)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def compute(ranks: Ranks | None = None) -> dict[str, Tensor]:
    """Weighted steps, products with the Jacobian and the Hessian by every path, gradients for
    inputs, features, and a batch that is too small to be shared."""
    kept: dict[str, Tensor] = {}
    for name, model in networks(ranks).items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1)  # for the dropout
        for step in range(3):
            batch, old, new = (data(size, 3 * step + part) for part, size in enumerate((13, 7, 5)))
            passed = record(model, loss, batch)
            found = sp_influence(
                model, loss, batch, old, new, steps=1 + step % 2, optimizer=optimizer,
                recorded=passed,
            )  # fmt: skip
            optimizer.zero_grad()
            ((1 / 13 - found.fused) * passed.losses).sum().backward()
            optimizer.step()
            kept |= {
                f"{name}/{step}/stability": found.stability,
                f"{name}/{step}/fused": found.fused,
            }
        kept |= {f"{name}/path/{found.path}": torch.zeros(1)}
        kept |= {f"{name}/state/{key}": value.clone() for key, value in model.state_dict().items()}
        kept |= {f"{name}/{key}": value for key, value in products(model).items()}
        inputs = data(9, 50)[0].requires_grad_()
        with features_seen(model) as seen:
            outputs = model(inputs)
        kept[f"{name}/features"] = seen[0].detach()
        kept[f"{name}/slopes"] = torch.autograd.grad(
            outputs.square().sum() + seen[0].exp().sum(), inputs
        )[0]
        model.eval()
        kept[f"{name}/lone"] = model(data(1, 60)[0]).detach()
        kept[f"{name}/tested"] = model(data(6, 61)[0]).detach()
    return kept


def products(model: nn.Module) -> dict[str, Tensor]:
    theta = {key: p.detach() for key, p in model.named_parameters()}
    random = torch.Generator().manual_seed(70)
    directions = {
        key: torch.randn(2, *t.shape, generator=random, dtype=t.dtype) for key, t in theta.items()
    }
    origin = Origin.of(model, torch.device("cpu"))
    problem = Problem(model, loss, data(11, 71), origin)
    product, curved = double_backward(problem, theta, directions)
    return {"J": product} | {f"H/{key}": value for key, value in curved.items()}


def talk(ranks: Ranks) -> tuple[int, int, int]:
    """The all-reduces and gatherings of a forward and a backward pass, and the BatchNorms."""
    model = networks(ranks)["convnet"]
    inputs, targets = data(13, 0)
    reduced, gathered = ranks.reduced, ranks.gathered
    loss(model(inputs), targets).sum().backward()
    norms = sum(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())
    return ranks.reduced - reduced, ranks.gathered - gathered, norms


if __name__ == "__main__":
    torch.set_num_threads(1)
    group = joined()
    assert group is not None
    torch.save(compute(group), Path(sys.argv[1]) / f"{group.rank}.pt")
    (Path(sys.argv[1]) / f"talk.{group.rank}.json").write_text(json.dumps(talk(group)))
    leave()
