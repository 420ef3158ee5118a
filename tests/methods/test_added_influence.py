"""Influence added to any method: the same bits as the methods that have it built in, its controls,
and what cannot be."""

import pytest
import torch

from metasp.config import declared
from metasp.errors import UserError
from metasp.methods import INFLUENCE, METHODS
from metasp.methods.context import unweighed
from metasp.spec import RunSpec
from tests.methods.factories import changed, digits, finish, small, weights
from tests.methods.test_every_method import run

TAKES = [name for name, recipe in METHODS.items() if recipe.kind.observable()]
QUICK = {"limit_per_class": 8, "tasks": 3, "classes_per_task": (4, 3, 3)}


def told(trainer):
    """What happens in a run, but for the names of its phases."""
    words = finish(trainer)
    for kind in ("finetune", "rehearse", "influence"):
        words = [(event, text.replace(f"'{kind}'", "'phase'")) for event, text in words]
    return words


def test_every_way_is_a_choice_of_the_spec_and_says_what_it_weighs():
    assert ("none", *INFLUENCE) == declared(RunSpec)["influence"].choices
    assert [name for name, recipe in METHODS.items() if recipe.influence] == TAKES
    assert {"er", "er-ace", "derpp", "icarl", "mir"} <= set(TAKES)


def test_added_to_er_in_its_schedule_it_is_metasp():
    """Rehearsal and influence in the last epochs, from the second task on, at every other step."""
    own = {"every": 2, "influence_last": 2, "strength": 3.0, "gamma": 0.3}
    one = digits("metasp", epochs=3, settings=own, **QUICK)
    two = digits("er", influence="metasp", rehearse_last=2, selection="task-balanced",
                 epochs=3, settings=own, **QUICK)  # fmt: skip
    assert told(one) == told(two)
    assert torch.equal(weights(one), weights(two))
    assert any("gamma" in words for _, words in told(digits("er", influence="metasp", **QUICK)))


@pytest.mark.parametrize("method", TAKES)
@pytest.mark.parametrize("influence", INFLUENCE)
def test_it_weighs_every_method_that_updates_and_shuffled_it_weighs_others(method, influence):
    """From the epoch on that its settings say; before it no bit differs."""
    shared = {"label_noise": 0.3, "epochs": 2, "lr": 0.05, "limit_per_class": 6, "tasks": 2}
    alone, added, shuffled = (
        digits(method, influence=way, settings=settings, **shared)
        for way, settings in (
            ("none", {}), (influence, {}), (influence, {"shuffle_influence": True}),
        )
    )  # fmt: skip
    without, with_it, mixed = (finish(trainer) for trainer in (alone, added, shuffled))
    assert not torch.equal(weights(alone), weights(added))
    assert not torch.equal(weights(shuffled), weights(added))
    key = {"metasp": "'gamma'", "robust": "'doubted'"}[influence]
    first = next(n for n, (_, words) in enumerate(with_it) if key in words)
    steps = [words for name, words in without if name == "StepTaken"]
    before = [words for name, words in with_it[:first] if name == "StepTaken"]
    assert before == steps[: len(before)]
    per_epoch = sum("'task': 0" in words and "'epoch': 0" in words for words in steps)
    epochs_before = {"metasp": 3, "robust": 1}[influence]  # a tenth of two, from the second task
    assert len(before) == epochs_before * per_epoch
    assert sum(key in words for _, words in mixed) == sum(key in words for _, words in with_it)


def test_of_der_the_rows_held_to_outputs_keep_their_share():
    trainer = digits("derpp", influence="robust", label_noise=0.4, trusted=1, epochs=3, memory=30)
    learner, seen = trainer.learner, []
    weigh = learner.weigh

    class Watching(type(weigh)):
        def __call__(self, learner, objective):
            weighed = super().__call__(learner, objective)
            seen.append((learner.arrived, weighed.weights, objective))
            return weighed

    learner.weigh = Watching(weigh.settings)
    finish(trainer)
    moved = 0
    for arrived, found, objective in seen:
        assert torch.equal(found[arrived:], objective.shares[arrived:])
        total = float(found[:arrived].sum())
        assert total == pytest.approx(1.0, abs=1e-5) or total == 0
        moved += not torch.allclose(found[:arrived], objective.shares[:arrived])
    assert moved > 10


def test_training_stats_know_no_loss_of_rows_without_their_label():
    """Distances to stored outputs are no losses by which an example is easy."""
    trainer = digits("der", memory=60, limit_per_class=4, tasks=2, epochs=3)
    learner, losses = trainer.learner, {}

    def spying(learner, objective):
        weighed = unweighed(learner, objective)
        for row in torch.nonzero(objective.weighable).flatten().tolist():
            example = int(objective.batch.ids[row])
            losses.setdefault(example, []).append(float(weighed.losses[row].detach()))
        return weighed

    spying.begin_task = spying.label_right = lambda *_: None
    spying.judges, spying.state_dict = False, dict
    learner.weigh = spying
    for event in trainer.run():
        if type(event).__name__ == "TaskFinished":
            break
    ids = learner.training_stats.examples.ids
    assert set(losses) == set(ids.tolist())
    means = torch.tensor([sum(losses[int(i)]) / len(losses[int(i)]) for i in ids])
    torch.testing.assert_close(learner.training_stats.examples.means(ids, "loss").float(), means)


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("gem", {"influence": "metasp"}, "cannot be weighed by influence: use er, "),
        ("metasp", {"influence": "robust"}, "cannot be weighed by influence"),
        ("loss-filter", {"influence": "robust"}, "cannot be weighed by influence"),
        ("metasp-robust", {"observe": 1}, "cannot be observed"),
        ("er", {"influence": "metasp", "observe": 1}, "leave one of the two out"),
        ("er", {"influence": "robusr"}, "robust"),
        ("er", {"settings": {"shuffle_influence": True}}, "add influence metasp or robust"),
        ("er", {"settings": {"weigh_from": 3}}, "add influence robust"),
        ("er", {"influence": "robust", "settings": {"gamma": 0.5}}, "gamma"),
        ("er", {"influence": "metasp", "settings": {"influence_last": 9}}, "only 2 epochs"),
        ("er", {"influence": "metasp", "settings": {"scope": "tail"}}, "tail"),
        ("er", {"influence": "metasp", "selection": "judged"}, "add influence robust"),
        ("er", {"influence": "robust", "selection": "rehsel"}, "needs influence"),
    ],
)
def test_what_cannot_be_is_one_sentence(method, changes, words):
    with pytest.raises(UserError, match=words):
        digits(method, **changes)


def test_the_stored_spec_says_all_that_was_done(tmp_path):
    spec = small("derpp", influence="metasp", epochs=20, limit_per_class=1, tasks=1, memory=60)
    stored = run(spec, tmp_path).directory
    found = stored.spec()
    assert found.influence == "metasp"
    assert found.settings["influence.influence_last"] == 2
    assert found.settings["influence.validation_old"] == 6
    assert found.settings["alpha"] == 0.2
    assert "-derpp-metasp-m60-" in stored.path.name
    usual = stored.result()["defaults"]
    assert usual.pop("schedule.influence_last") == 2
    settings = {k: v for k, v in found.flat().items() if "." in k and "influence_last" not in k}
    assert usual == {"selection": "reservoir", **settings}


@pytest.mark.parametrize(("method", "influence"), [("derpp", "metasp"), ("er-ace", "robust")])
def test_a_restored_trainer_goes_on_to_the_bit(method, influence):
    own = {"every": 2, "shuffle_influence": True, "influence_last": 2}
    settings = own if influence == "metasp" else {"shuffle_influence": True}
    one, two = (
        digits(method, influence=influence, settings=settings, label_noise=0.2, epochs=3, tasks=2,
               limit_per_class=6, trusted=1)
        for _ in range(2)
    )  # fmt: skip
    events = one.run()
    while one.position.task == 0 or one.position.epoch < 1 or one.position.step < 3:
        next(events)
    tensors, position = one.state()
    kept = {key: tensor.clone() for key, tensor in tensors.items()}
    assert any(key.startswith("weigh/") for key in kept)
    two.restore(kept, position)
    assert changed(kept, two.state()[0]) == []
    for trainer in (one, two):
        finish(trainer)
    assert torch.equal(weights(one), weights(two))
