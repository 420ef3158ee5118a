"""The walk backwards against finite differences of real weighted retrainings."""

from functools import partial

import pytest
import torch

from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.train.reweighting import ReweightedModel
from metasp.whole_run.backwards import walk
from metasp.whole_run.queries import losses_of, queries_of
from metasp.whole_run.rerun import Rerun, check_differentiable
from tests.helpers import finish

SMALL = {"limit_per_class": 4, "tasks": 2, "memory": 20, "batch_size": 8, "memory_batch": 8,
         "width": 4, "threads": 1, "epochs": 2, "precision": "fp64", "lr": 0.03}  # fmt: skip
STEPS = (1e-6, 1e-7)  # of the differences: a ReLU may have its kink within one of them


def check_derivatives(tmp_path, query="test", task_il=False, **settings):
    """Compare with central differences along two random directions, and along the example that
    counts most; the weights of all rows of an example move together."""
    run = finish(prepare(RunSpec.from_dict({**SMALL, **settings}), tmp_path))
    rerun = Rerun.of(run)
    queries = queries_of(rerun.benchmark.tasks, query, task_il)
    found = walk(rerun, queries)
    assert len(queries) == 2
    derivatives, ids = found.direct + found.replayed, found.ids
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(len(ids), generator=generator).double() for _ in range(2)]
    directions.append(torch.zeros(len(ids)).double())
    directions[-1][derivatives.abs().sum(0).argmax()] = 1

    def factors(direction, eps, rows):
        return 1 + eps * direction[torch.searchsorted(ids, rows)]

    models = []

    def watchers(trainer):
        for direction in directions:
            for eps in (*STEPS, *(-step for step in STEPS)):
                models.append(ReweightedModel(trainer.learner, partial(factors, direction, eps)))
        models.append(ReweightedModel(trainer.learner, lambda rows: torch.ones(len(rows))))
        return models

    with rerun.threads():
        trainer, _ = rerun.forwards(watchers)
        losses = [losses_of(trainer.learner, model.model, queries) for model in models]
    for at, direction in enumerate(directions):
        above, below = torch.stack(losses[4 * at : 4 * at + 4]).view(2, 2, -1)
        measured = (above - below) / (2 * torch.tensor(STEPS)[:, None])
        gaps = (derivatives @ direction - measured).abs().amax(1)
        assert min(gaps / measured.abs().amax(1)) < 1e-6
    unchanged, again = models[-1].model.state_dict(), trainer.learner.model.state_dict()
    assert all(torch.equal(unchanged[name], again[name]) for name in again)
    assert rerun.notes == []  # the bits that the run stored
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "er", "momentum": 0.9, "weight_decay": 1e-3},
        {"method": "derpp", "backbone": "mlp"},
        {"method": "gdumb", "settings": {"memory_epochs": 2}},
        {"method": "metasp-rehsel"},
        {"method": "er", "optimizer": "adamw", "lr": 1e-3, "backbone": "mlp"},
    ],
    ids=lambda settings: "-".join(str(settings.get(k)) for k in ("method", "optimizer")),
)
def test_derivatives_are_those_of_real_retrainings(tmp_path, settings):
    check_derivatives(tmp_path, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["finetune", "joint", "er-ace", "der", "metasp", "metasp-robust", "mir", "gss", "loss-filter"],
)
def test_derivatives_of_other_methods(tmp_path, method):
    found = check_derivatives(tmp_path, method=method, task_il=True)
    assert bool(found.replayed.any()) == (method not in ("finetune", "joint"))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "nadam", "rmsprop", "adagrad"])
def test_derivatives_of_other_optimizers(tmp_path, optimizer):
    check_derivatives(tmp_path, method="er", optimizer=optimizer, lr=1e-3, lr_drop_at=(1,))


@pytest.mark.slow
def test_derivatives_through_the_weights_of_the_best_epoch(tmp_path):
    settings = {"validation": 0.3, "patience": 1, "epochs": 5, "momentum": 0.9, "lr": 0.3}
    check_derivatives(tmp_path, "validation", method="er", **settings)


@pytest.mark.slow
def test_derivatives_of_augmented_pictures(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 24), ("test", 8)):
        pictures = torch.randint(0, 256, (count, 8, 8, 3), generator=generator)
        write_pictures(tmp_path / "data" / part, pictures.byte().numpy())
    folder = {"benchmark": f"folder:{tmp_path / 'data'}", "limit_per_class": None}
    check_derivatives(tmp_path / "runs", method="er", momentum=0.9, **folder)


def write_pictures(folder, pictures):
    from PIL import Image

    for number, picture in enumerate(pictures):
        place = folder / f"class-{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{number}.png")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "gem"}, "no weighted sum"),
        ({"method": "er", "precision": "bf16"}, "bf16"),
    ],
)
def test_what_cannot_be_differentiated_is_refused_in_one_sentence(settings, reason):
    with pytest.raises(UserError, match=reason):
        check_differentiable(RunSpec.from_dict(settings))
