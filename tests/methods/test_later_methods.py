"""What must hold for the methods that came after the paper, beyond what holds for all."""

import pytest
import torch

from metasp.learner import ContinualLearner
from metasp.memory.herding import UNRANKED
from tests.learner.factories import net, pair
from tests.methods.factories import digits, finish, weights
from tests.methods.test_der import growing

LATER = ("er-ace", "der", "derpp", "cls-er", "icarl")
later = pytest.mark.parametrize("method", LATER)


@later
def test_a_head_that_grows(method):
    learner = growing(method, lr=0.1)
    for number in range(3):
        learner.learn(pair(number, 60), progress=False)
        assert learner.outputs(pair(0)[0]).shape[1] == 2 * number + 2
        assert set(learner.predict(pair(number)[0]).tolist()) <= set(range(2 * number + 2))
    assert learner.score(pair(2)) > 0.5


@later
def test_tasks_that_all_have_the_same_classes(method):
    trainer = digits(method, benchmark="rotated-digits", limit_per_class=6, lr=0.05)
    finish(trainer)
    assert weights(trainer).isfinite().all()
    memory = trainer.learner.memory
    assert set(memory.tasks[memory.occupied].tolist()) == {0, 1, 2, 3, 4}


@later
def test_fewer_slots_than_classes_and_one_epoch(method):
    learner = ContinualLearner(net(), method, memory=3, epochs=1, lr=0.05)
    for number in range(4):
        learner.learn(pair(number, 40), progress=False)
        held = learner.memory.table().column("task").to_pylist()
        assert len(held) == 3
    assert all(p.isfinite().all() for p in learner.model.parameters())


@later
@pytest.mark.parametrize("selection", ["reservoir", "herding"])
def test_a_forgotten_example_leaves_all_that_was_kept_of_it(method, selection):
    """Its slot, with what the columns hold of it; the others keep theirs, and learning goes on."""
    learner = ContinualLearner(net(), method, memory=20, epochs=2, selection=selection, lr=0.05)
    for number in range(2):
        learner.learn(pair(number, 60), progress=False)
    memory = learner._trainer.learner.memory
    gone = memory.ids[[2, 11]].clone()
    kept = ~torch.isin(memory.ids, gone)
    names = {"logits"} if method in ("der", "derpp") else set()
    names |= {"rank"} if selection == "herding" else set()
    before = {name: memory[name][kept].clone() for name in names}
    learner.forget(gone.tolist())
    assert not torch.isin(memory.ids, gone).any()
    for name in names:
        assert torch.equal(memory[name][kept], before[name])
        blank = memory[name][~kept]
        assert bool((blank.isnan() if name == "logits" else blank == UNRANKED).all()), name
    learner.learn(pair(2, 60), progress=False)
    assert not torch.isin(memory.ids, gone).any()
    assert len(memory) == 20
