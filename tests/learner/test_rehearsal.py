"""The memory beside a loop of one's own: what it replays, weighs, keeps and restores."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.errors import UserError
from metasp.influence import sp_influence
from metasp.learner.rehearsal import Rehearsal
from metasp.methods.weighting import released
from metasp.types import CROSS_ENTROPY
from tests.learner.factories import net, pair


def loop(rehearsal, model, tasks=2, epochs=2, after=None):
    """A loop as anybody writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(tasks):
        rehearsal.begin(model, optimizer)
        inputs, labels = pair(number)
        for epoch in range(epochs):
            for x, y in zip(inputs.split(30), labels.split(30)):
                batch = rehearsal.extended(x, y, first_epoch=epoch == 0)
                losses = F.cross_entropy(model(batch.inputs), batch.labels, reduction="none")
                optimizer.zero_grad()
                (batch.weights * losses).sum().backward()
                optimizer.step()
                rehearsal.remember()
                if after is not None:
                    after(batch)
    return model


def test_every_example_is_offered_once_and_replayed_after_the_new_ones():
    rehearsal, sizes = Rehearsal(memory=20, memory_batch=10), []
    loop(rehearsal, net(), after=lambda batch: sizes.append(len(batch.labels)))
    assert rehearsal.memory.offered == rehearsal.next_id == 240
    assert sizes == [30] + [40] * 15
    ids = rehearsal.memory.ids
    assert len({*ids.tolist()}) == 20
    inputs, labels = (torch.cat(parts) for parts in zip(pair(0), pair(1)))
    assert torch.equal(rehearsal.memory.inputs, inputs[ids])
    assert torch.equal(rehearsal.memory.labels, labels[ids])
    assert {*rehearsal.memory.tasks.tolist()} == {0, 1}


@pytest.mark.parametrize("clip", [None, 0.01])
def test_weights_are_those_of_the_influence(clip):
    """Against the influence itself, on the sets that the rehearsal's streams would draw; it clips
    gradients where the training does."""
    model = nn.Linear(64, 10)
    rehearsal = Rehearsal(memory=20, memory_batch=10, influence=True, window=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        rehearsal.begin(model, optimizer, clip)
        x, y = (part[:30] for part in pair(number))
        if number == 0:
            batch = rehearsal.extended(x, y, first_epoch=True)
            rehearsal.remember()
            assert torch.equal(batch.weights, torch.full((30,), 1 / 30))
    seen = []
    measured = sp_influence

    def spy(model, loss_fn, batch, old, new, **options):
        seen.append((batch, old, new))
        return measured(model, loss_fn, batch, old, new, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasp.methods.weighting.sp_influence", spy)
        batch = rehearsal.extended(x, y, first_epoch=True)
    (whole, old, new), memory = seen[0], rehearsal.memory
    assert torch.equal(whole[0], batch.inputs)
    held = {row.numpy().tobytes() for row in memory.inputs}
    assert {row.numpy().tobytes() for row in old[0]} <= held
    assert {row.numpy().tobytes() for row in new[0]} <= {row.numpy().tobytes() for row in x}
    goals = (whole, old, new)
    found = released(measured(model, CROSS_ENTROPY, *goals, optimizer=optimizer, clip_norm=clip))
    torch.testing.assert_close(batch.weights, found.weights)
    assert float(batch.weights.std()) > 0


@pytest.mark.parametrize("influence", [False, True])
def test_a_restored_rehearsal_goes_on_to_the_same_bits(influence):
    def made():
        return Rehearsal(memory=20, memory_batch=10, influence=influence)

    model, whole = net(), made()
    states = []

    def stop(batch):
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        state = {name: value.clone() for name, value in whole.state_dict().items()}
        states.append((state, weights, batch))

    loop(whole, model, after=stop)
    state, weights, _ = states[9]  # in the second task
    again, other = made(), net()
    other.load_state_dict(weights)
    again.load_state_dict(state)
    again.begin(other, torch.optim.SGD(other.parameters(), lr=0.1))
    x, y = (part[60:90] for part in pair(1))
    torch.manual_seed(0)
    one = again.extended(x, y, first_epoch=True)
    assert torch.equal(one.inputs, states[10][2].inputs)
    assert again.task == 1
    again.remember()
    after = states[10][0]
    for name, value in again.state_dict().items():
        if not name.startswith(("streams/", "recent/")):
            assert torch.equal(value, after[name]) or value.isnan().any(), name
    with pytest.raises(UserError, match="memory of 20 slots"):
        Rehearsal(memory=5).load_state_dict(state)


def test_mistakes_are_one_sentence():
    with pytest.raises(UserError, match=r"decides at the end of a task.*reservoir"):
        Rehearsal(selection="herding")
    with pytest.raises(UserError, match="unknown selection"):
        Rehearsal(selection="resevoir")
    with pytest.raises(UserError, match="memory is 0"):
        Rehearsal(memory=0)
    rehearsal = Rehearsal(influence=True)
    with pytest.raises(UserError, match="call begin first"):
        rehearsal.extended(*pair(0), first_epoch=True)
    model = net()
    with pytest.raises(UserError, match="cannot follow Rprop"):
        rehearsal.begin(model, torch.optim.Rprop(model.parameters()))
    rehearsal.begin(model, torch.optim.SGD(model.parameters()))
    rehearsal.extended(*pair(0), first_epoch=True)
    rehearsal.remember()
    with pytest.raises(UserError, match="padding to one length"):
        rehearsal.extended(torch.zeros(2, 3), torch.zeros(2).long(), first_epoch=True)
