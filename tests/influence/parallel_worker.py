"""One rank of a test under torchrun: shards of a batch, steps weighted by their influence.
Usage: torchrun … -m tests.influence.parallel_worker FOLDER"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence import Ranks, record, sp_influence
from metasp.methods.weighting import RULES

STEPS = 3


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    ).double()


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, 5, 5, generator=random, dtype=torch.float64)
    return inputs, torch.randint(0, 5, (count,), generator=random)


def sizes(count: int, ranks: int) -> list[int]:
    """Uneven shards: the first has what the others leave."""
    others = [count // (2 * ranks)] * (ranks - 1)
    return [count - sum(others), *others]


def shard(pair: tuple[Tensor, Tensor], rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    parts = [column.split(sizes(len(column), ranks))[rank] for column in pair]
    return parts[0], parts[1]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def train(rank: int = 0, ranks: int = 1, group: Ranks | None = None) -> dict[str, Tensor]:
    """Some weighted steps; everything that must not depend on the number of ranks."""
    kept: dict[str, Tensor] = {}
    for rule, pseudo in (("released", 1), ("as-written", 2)):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for step in range(STEPS):
            pairs = [data(21, 3 * step), data(10, 3 * step + 1), data(9, 3 * step + 2)]
            batch, old, new = (shard(pair, rank, ranks) for pair in pairs)
            passed = record(model, loss, batch)
            found = sp_influence(
                model, loss, batch, old, new, steps=pseudo, optimizer=optimizer, recorded=passed,
                ranks=group,
            )  # fmt: skip
            weights = RULES[rule](found, None).weights
            total = (weights[found.own] * passed.losses).sum()
            if group is None:
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
            else:
                group.descend(total, optimizer)
            name = f"{rule}/{step}"
            numbers = torch.tensor([found.gamma, found.old_loss, found.new_loss]).double()
            kept |= {f"{name}/stability": found.stability, f"{name}/weights": weights}
            kept |= {f"{name}/plasticity": found.plasticity, f"{name}/fused": found.fused}
            kept[f"{name}/numbers"] = numbers
        kept |= {f"{rule}/model/{k}": p.detach() for k, p in model.named_parameters()}
    return kept


def failing(group: Ranks) -> str:
    """One rank's shard is not finite: what does each rank say?"""
    batch = shard(data(21, 0), group.rank, group.size)
    if group.rank == group.size - 1:
        batch[0][0] = float("inf")
    try:
        sp_influence(make_net(), loss, batch, data(4, 1), data(4, 2), lr=0.1, ranks=group)
    except UserError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks()
    result = train(ranks.rank, ranks.size, ranks)
    result["reduced"] = torch.tensor(ranks.reduced)
    torch.save(result, folder / f"{ranks.rank}.pt")
    (folder / f"{ranks.rank}.txt").write_text(failing(ranks))
    dist.barrier()  # a rank that leaves early can abort the others' threads (gloo)
    dist.destroy_process_group()
