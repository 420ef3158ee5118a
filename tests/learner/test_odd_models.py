"""Models and labels that are legal and rare: each method learns them, or says why it does not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from metasp import ContinualLearner, sp_influence
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.methods import Method
from metasp.methods.weighting import InfluenceWeights

SHORT = {"hal": {"anchor_steps": 2}, "gdumb": {"memory_epochs": 2}}


def rows(count, seed=0, width=6):
    inputs = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return inputs, torch.arange(count) % 2


def learner_of(model, method="metasp-rehsel", **settings):
    own = SHORT.get(method, {})
    return ContinualLearner(
        model, method, **{"memory": 8, "epochs": 1, "settings": own, **settings}
    )


def hinge(outputs, targets):
    return F.relu(1 - outputs.flatten() * targets)


@pytest.mark.parametrize("method", ["gdumb", "agem", "er"])
def test_labels_of_plus_and_minus_one_share_the_memory(method):
    """−1 is a class, not the mark of an empty slot."""
    selection = {} if method != "er" else {"selection": "greedy"}
    learner = learner_of(nn.Linear(6, 1), method, loss_fn=hinge, memory=12, **selection)
    for seed in range(3):
        inputs, labels = rows(16, seed)
        learner.learn((inputs, labels * 2 - 1), progress=False)
    held = learner.memory.table().column("label").to_pylist()
    assert held.count(-1) == held.count(1) == 6


class Tokens(nn.Module):
    """One token in, one class out: inputs of shape (n,)."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.embed(x))


@pytest.mark.parametrize("selection", ["rehsel", "rehsel-features", "rehsel-filter"])
def test_inputs_without_a_second_axis_are_clustered(selection):
    learner = learner_of(Tokens(), selection=selection)
    for task in range(2):
        tokens = torch.arange(20) % 9
        learner.learn((tokens, (tokens + task) % 2), progress=False)
    assert len(learner.memory) == 8


class Lone(nn.Module):
    """One output per example, of shape (n,)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def logistic(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none")


@pytest.mark.parametrize("method", ["hal", "metasp-rehsel"])
def test_outputs_without_a_second_axis(method):
    selection = {"selection": "rehsel-features"} if method == "metasp-rehsel" else {}
    learner = learner_of(Lone(), method, loss_fn=logistic, **selection)
    for seed in range(3):
        learner.learn(rows(16, seed), progress=False)
    assert learner.tasks == 3


class Caching(nn.Module):
    """Keeps a tensor of the size of the last batch, and differentiates through it."""

    def __init__(self):
        super().__init__()
        self.layer, self.ones = nn.Linear(6, 2), None

    def forward(self, x):
        if self.ones is None or len(self.ones) < len(x):
            self.ones = torch.ones(len(x), 1)
        return self.layer(x) * self.ones[: len(x)]


def test_what_a_model_caches_while_it_is_tested_serves_training():
    learner = learner_of(Caching(), memory=30)
    for seed in range(3):
        learner.learn(rows(40, seed), test=rows(90, seed + 9), progress=False)
    assert learner.tasks == 3


@pytest.mark.parametrize("method", ["er", "agem", "gem"])
def test_a_gradient_that_overflows_is_told_in_a_sentence(method):
    learner = learner_of(nn.Linear(6, 2), method, epochs=3)
    learner.learn(rows(16), progress=False)
    inputs, labels = rows(16, 1)
    inputs[3] *= 1e30
    with pytest.raises(UserError, match=r"became NaN or infinite at task 2, epoch \d, step 1"):
        learner.learn((inputs * 1e8, labels), progress=False)
    assert learner.tasks == 1


def test_the_epoch_of_a_divergence_is_that_of_the_task():
    """Rehearsal begins in the fifth epoch, and is where the loss overflows."""
    bad = torch.zeros(())

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none") + bad

    def follow(learner):
        for event in learner.stream(rows(16)):
            if isinstance(event, StepTaken) and event.epoch == 3:
                bad.fill_(torch.nan)

    learner = learner_of(nn.Linear(6, 2), "er", epochs=5, rehearse_last=1, loss_fn=loss)
    with pytest.raises(UserError, match="at task 1, epoch 5, step 1"):
        follow(learner)


def shuffling(count):
    return DataLoader(TensorDataset(*rows(count, 1)), batch_size=8, shuffle=True)


def test_a_refused_learn_does_not_disturb_the_one_under_way():
    def weights(disturbed):
        learner = learner_of(nn.Linear(6, 2), "er")
        torch.nn.init.ones_(learner.model.weight)
        torch.nn.init.zeros_(learner.model.bias)
        for number, _ in enumerate(learner.stream(rows(64))):
            if disturbed and number == 1:
                with pytest.raises(UserError, match="in the middle of a task"):
                    learner.learn(shuffling(8), progress=False)
        learner.learn(shuffling(64), progress=False)
        return learner.model.weight.detach()

    assert torch.equal(weights(True), weights(False))


class Counting(nn.Module):
    """A buffer that moves and is not in the state, and whose size is that of the last batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("last", torch.zeros(0), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen = self.seen + len(x) / 100
            self.last = x.detach().mean(1)
        return self.layer(x) * (1 + self.seen)


def test_a_buffer_outside_the_state_is_saved_too(tmp_path):
    torch.manual_seed(0)
    learner = learner_of(Counting(), "er")
    learner.learn(rows(16), progress=False)
    learner.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", Counting())
    assert torch.equal(again.model.seen, learner.model.seen)
    assert torch.equal(again.model.last, learner.model.last)
    for each in (learner, again):
        each.learn(rows(16, 1), progress=False)
    assert torch.equal(again.model.layer.weight, learner.model.layer.weight)


def test_a_state_that_is_no_tensor_is_refused():
    class Noted(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(UserError, match=r"_extra_state of the state is .*only tensors are stored"):
        learner_of(Noted(6, 2)).learn(rows(16), progress=False)


@pytest.mark.parametrize("method", ["metasp", "metasp-rehsel"])
def test_a_memory_of_one_and_batch_norm(method):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    learner = learner_of(model, method, memory=1)
    for seed in range(2):
        learner.learn(rows(16, seed), progress=False)
    assert len(learner.memory) == 1


@pytest.mark.parametrize("method", ["er", "agem", "gem"])
def test_weight_decay_leaves_alone_what_no_loss_looks_at(method):
    model = nn.Linear(6, 2)
    model.unused = nn.Linear(3, 3)
    before = model.unused.weight.detach().clone()
    learner = learner_of(model, method, weight_decay=0.1, momentum=0.5)
    for seed in range(2):
        learner.learn(rows(16, seed), progress=False)
    assert torch.equal(model.unused.weight, before)


def test_weights_that_are_not_numbers_are_refused_before_anything_is_learned():
    learner = learner_of(nn.Linear(6, 2), "er")
    nn.init.constant_(learner.model.bias, torch.nan)
    with pytest.raises(UserError, match="weights that are NaN or infinite: load or draw it again"):
        learner.learn(rows(16), progress=False)


def test_influence_leaves_embeddings_with_a_largest_norm_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 2))
    before = model[0].weight.detach().clone()
    loss = nn.CrossEntropyLoss(reduction="none")
    x, y = torch.arange(18).reshape(9, 2) % 9, torch.arange(9) % 2
    found = sp_influence(model, loss, batch=(x, y), old=(x, y), new=(x, y), lr=0.1)
    assert torch.equal(model[0].weight, before)
    assert found.stability.isfinite().all()


def test_gmed_keeps_to_bytes_or_to_floats():
    inputs, labels = rows(24)
    data = (inputs * 50 + 128).clamp(0, 255).to(torch.uint8)
    learner = learner_of(nn.Linear(6, 2), "gmed")
    learner.learn((data, labels), progress=False)
    learner.learn((data, labels), progress=False)
    with pytest.raises(UserError, match=r"float32 of shape \(6,\) and were uint8"):
        learner.learn((data.float(), labels), progress=False)


def test_dropout_is_no_drift_to_hal():
    """A step of no length moves no prediction, whatever the masks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    learner = learner_of(model, "hal")
    learner.learn(rows(16), progress=False)
    method = learner._trainer.method
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.train()
    found = method.drift_gradient(method.anchors)
    assert found
    assert all(not bool(part.any()) for _, part in found)


def test_a_method_of_ones_own_that_measures_can_select_by_influence():
    class Careful(Method):
        measures = True

        def step(self, new, phase):
            batch = self.learner.with_replay(new)
            return self.learner.update(batch, weigh=InfluenceWeights(gamma=0.8))

    class Silent(Careful):
        measures = False

    learner = learner_of(nn.Linear(6, 2), Careful, selection="rehsel")
    for seed in range(2):
        learner.learn(rows(16, seed), progress=False)
    assert len(learner.memory) == 8
    with pytest.raises(UserError, match="measures = True"):
        learner_of(nn.Linear(6, 2), Silent, selection="rehsel")
