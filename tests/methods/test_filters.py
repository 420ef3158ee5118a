"""The controls of metasp-robust: filters, verified examples alone, and GLC."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.methods.context import Weighed, unweighed
from metasp.methods.filters import LowLoss, lowest, neighbours_agree
from metasp.methods.label_model import seen_by
from tests.methods.factories import digits, small, train

NOISY = {"label_noise": 0.6, "label_noise_kind": "one-sided", "trusted": 2}


def test_the_lowest_part_is_kept_and_never_none():
    values = torch.tensor([3.0, 1.0, torch.nan, 2.0])
    assert lowest(values, 0.5).tolist() == [False, True, False, True]
    assert lowest(values, 0.0).tolist() == [False, True, False, False]


def test_what_is_left_of_the_new_examples_has_their_share():
    even = Weighed(torch.zeros(6), torch.full((6,), 1 / 6))
    weights = even.dealt(torch.tensor([True, False, False, True])).weights
    torch.testing.assert_close(weights, torch.tensor([1 / 3, 0, 0, 1 / 3, 1 / 6, 1 / 6]))


def test_the_true_share_of_each_class_is_that_of_the_noise():
    benchmark = load_benchmark(small("er", **{**NOISY, "trusted": 0}))
    wrong = set(benchmark.flipped["id"])
    for task, shares in zip(benchmark.tasks, benchmark.wrong_shares):
        for label in task.classes:
            own = task.train.ids[task.train.labels == label].tolist()
            assert shares[label] == pytest.approx(sum(i in wrong for i in own) / len(own))
        assert shares[None] == pytest.approx(len(wrong & set(task.train.ids.tolist())) / 24)


def means_of(learner, name):
    stats = learner.training_stats.examples
    return stats.means(stats.ids, name)


def weights_of_the_second_epoch(**settings):
    """The mean weight of each example of the first task after two epochs, with its mean loss after
    the first."""
    trainer = digits("loss-filter", **NOISY, settings=settings, augment=False)
    learner, loss, before = trainer.learner, None, None
    for event in trainer.run():
        if type(event).__name__ == "StepTaken" and event.epoch == 1 and event.step == 0:
            loss = before
        if type(event).__name__ == "StepTaken":
            before = means_of(learner, "loss")
        if type(event).__name__ == "TaskFinished":
            break
    dropped = means_of(learner, "weight") < 1
    return trainer, loss, dropped


def test_per_class_the_higher_half_of_each_class_is_dropped():
    trainer, loss, dropped = weights_of_the_second_epoch(per_class=True, drop=0.5)
    task = trainer.tasks[0].train
    labels = task.labels[task.ids.argsort()]
    for label in set(labels.tolist()):
        own = labels == label
        count = int(own.sum())
        highest = loss[own].argsort(descending=True)[: count - max(1, round(count / 2))]
        assert int(dropped[own].sum()) >= len(highest)
        assert dropped[own][highest].double().mean() > 0.9


def test_a_task_begins_with_the_state_of_a_new_filter():
    trainer = digits("loss-filter", **NOISY, settings={"per_class": True})
    train(trainer, 6)
    filter = trainer.learner.weigh
    assert len(filter.clean_ids)
    filter.begin_task(trainer.learner)
    for name, fresh in LowLoss(filter.settings).state_dict().items():
        torch.testing.assert_close(filter.state_dict()[name], fresh)  # of the same type, too


def test_a_share_that_nobody_knows_must_be_given():
    trainer = digits("loss-filter", trusted=2, settings={"told": True})
    trainer.told = ()
    with pytest.raises(UserError, match="true share of wrong labels is not known"):
        train(trainer, 1)


def test_neighbours_agree_as_scikit_learn_says_of_the_others():
    draw = torch.Generator().manual_seed(2)
    labels = torch.randint(3, (40,), generator=draw)
    features = torch.randn(40, 4, generator=draw) + labels[:, None]
    expected = []
    for row in range(40):
        rest = torch.arange(40) != row
        votes = KNeighborsClassifier(5).fit(features[rest], labels[rest])
        chances = votes.predict_proba(features[[row]])[0]
        expected.append(bool(chances[labels[row]] == chances.max()))
    assert neighbours_agree(features, labels, 5).tolist() == expected


def test_the_prototypes_are_the_verified_examples_of_a_class():
    trainer = digits("prototype-filter", **NOISY, augment=False)
    learner, task = trainer.learner, trainer.tasks[0]
    train(trainer, 4)
    verified = seen_by(learner, task.trusted)
    nearest = NearestCentroid().fit(verified.features, task.trusted.labels)
    said = nearest.predict(seen_by(learner, task.train).features)
    clean = task.train.ids[torch.as_tensor(said) == task.train.labels]
    assert learner.weigh.clean(learner).tolist() == clean.tolist()
    assert 0 < len(clean) < len(task.train)
    assert learner.weigh.judged(learner, clean).tolist() == [1.0] * len(clean)


def test_verified_only_moves_by_verified_examples_alone():
    """New labels may be anything: the weights after some steps are the same."""
    one = digits("verified-only", **NOISY, augment=False, augment_memory=False, backbone="mlp")
    other = digits("verified-only", **NOISY, augment=False, augment_memory=False, backbone="mlp")
    task = other.tasks[0]
    task.train.labels[:] = task.train.labels.flip(0)
    for trainer in (one, other):
        train(trainer, 4)
    for ours, theirs in zip(one.learner.model.parameters(), other.learner.model.parameters()):
        assert torch.equal(ours, theirs)
    memory = one.learner.memory
    assert bool(memory.pinned[memory.occupied].all())


def test_verified_only_needs_someone_to_have_verified_something():
    with pytest.raises(UserError, match="give it verified examples"):
        train(digits("verified-only", trusted=0), 1)


def test_glc_corrects_by_the_mean_answer_to_the_verified_of_each_class():
    trainer = digits("glc", **NOISY, settings={"correct_from": 2}, augment=False)
    train(trainer, 4)
    method, learner = trainer.method, trainer.learner
    assert method.corrects
    assert method.mistakes[:2, :2].sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)
    outputs = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    labels, verified = torch.tensor([0, 1, 1]), torch.tensor([False, True, False])
    found = method.mixed(verified, outputs, labels)
    torch.testing.assert_close(method.corrected(outputs, labels)[~verified], found[~verified])
    chance = outputs.softmax(1)
    matrix = torch.eye(10)
    matrix[:2, :2] = method.mistakes[:2, :2]
    for row, label in ((0, 0), (2, 1)):
        given = sum(float(chance[row, c] * matrix[c, label]) for c in range(10))
        assert float(found[row]) == pytest.approx(-torch.tensor(given).log().item(), abs=1e-5)
    assert float(found[1]) == pytest.approx(float(F.cross_entropy(outputs[1:2], torch.tensor([1]))))
    double = method.mixed(verified, outputs.double(), labels)
    torch.testing.assert_close(double.float(), found)
    pinned = learner.memory.ids[learner.memory.pinned]
    assert len(pinned) == 4


def test_glc_does_not_fit_the_verified_before_it_has_looked():
    trainer = digits("glc", **NOISY, settings={"correct_from": 2})
    assert trainer.method.present == []  # before the first task
    train(trainer, 1)
    assert trainer.method.present == sorted(trainer.tasks[0].classes)
    memory = trainer.learner.memory
    held = memory.labels[memory.pinned]
    assert len(held) == 4
    assert len(trainer.method.slots()) == 0
    trainer.method.corrects = True
    assert len(trainer.method.slots()) == 4


def test_the_goal_of_glc_is_the_plain_loss_of_each_label():
    trainer = digits("glc", **NOISY, settings={"correct_from": 2}, augment=False)
    train(trainer, 4)
    seen, outputs, labels = [], torch.randn(3, 10), torch.tensor([1, 0, 1])

    def watched(learner, objective):
        seen.append(objective)
        return unweighed(learner, objective)

    trainer.learner.weigh = watched
    trainer.method.step(trainer.tasks[0].train.take(torch.arange(4)), None)
    found = seen[0].goal(outputs, labels)
    assert trainer.method.corrects
    torch.testing.assert_close(found, F.cross_entropy(outputs, labels, reduction="none"))
