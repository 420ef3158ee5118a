"""A learner whose method has influence added to it, or is the recommended one."""

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from metasp.methods import RECOMMENDED
from tests.learner.factories import everything, net, pair, quick, regression, squares


@pytest.mark.parametrize(
    ("influence", "settings"),
    [("metasp", {"gamma": 0.4, "every": 2, "alpha": 0.3}), ("robust", {"weigh_from": 3})],
)
def test_a_saved_learner_goes_on_with_it_to_the_bit(influence, settings, tmp_path):
    one = quick(method="derpp", influence=influence, settings=settings)
    one.learn(pair(0), progress=False)
    one.save(tmp_path / "one.learner")
    two = ContinualLearner.load(tmp_path / "one.learner", net())
    assert two.settings.influence == influence
    assert settings.items() <= two.settings.settings.items()
    for learner in (one, two):
        learner.learn(pair(1), progress=False)
    assert everything(one) == everything(two)
    other = quick(method="derpp", settings={})
    for number in range(2):
        other.learn(pair(number), progress=False)
    weights = [torch.cat([p.flatten() for p in m.model.parameters()]) for m in (one, other)]
    # These labels are right and surely so: `robust` changes nothing.
    assert torch.equal(*weights) == (influence == "robust")


def test_judging_labels_needs_classes_and_weighing_does_not():
    def learner(influence):
        model = nn.Linear(3, 2)
        return quick(model, "er", influence=influence, loss_fn=squares, selection="reservoir")

    with pytest.raises(UserError, match="influence robust needs classes"):
        learner("robust").learn(regression(0.0), progress=False)
    for shift in (0.0, 1.0):
        learner("metasp").learn(regression(shift), progress=False)


def test_best_is_the_recommended_method_also_in_a_file(tmp_path):
    learner = quick(method="best")
    assert (learner.method, learner.settings.selection) == RECOMMENDED
    learner.learn(pair(0), progress=False)
    learner.save(tmp_path / "best.learner")
    again = ContinualLearner.load(tmp_path / "best.learner", net())
    assert (again.method, again.settings.selection) == RECOMMENDED
    assert quick(method="best", selection="ring").settings.selection == "ring"
