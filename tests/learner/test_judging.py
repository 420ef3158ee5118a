"""Examples judged before they are learned."""

import pytest
import torch
from torch import nn

from metasp import ContinualLearner, FrozenEncoder, sp_influence
from metasp.errors import UserError
from tests.learner.factories import everything
from tests.learner.test_trusted import CENTRES, examples, net, pinned


def swapped(classes, each, seed, part):
    """Examples of which a part, of each class, has the label of the next class in `classes`."""
    x, y = examples(classes, each, seed)
    given = y.clone()
    for place, label in enumerate(classes):
        rows = torch.nonzero(y == label).flatten()[: round(part * each)]
        given[rows] = classes[(place + 1) % len(classes)]
    return x, given, given != y


def learned(**settings):
    values = {"memory": 24, "epochs": 4, "lr": 0.05, "seed": 3, **settings}
    learner = ContinualLearner(net(), "metasp-robust", **values)
    learner.learn(examples([0, 1], 40, 1), trusted=examples([0, 1], 4, 9), progress=False)
    return learner.learn(examples([2, 3], 40, 2), progress=False)


def test_wrong_labels_are_likely_wrong_and_examples_look_like_what_they_are():
    learner = learned()
    x, given, wrong = swapped([0, 1, 2, 3], 50, 7, 0.3)
    table = learner.judge((x, given))
    chances = torch.tensor(table["wrong"].to_pylist())
    assert float(chances[wrong].mean()) > 0.8
    assert float(chances[~wrong].mean()) < 0.1
    true = torch.cdist(x, CENTRES).argmin(1)
    assert float((torch.tensor(table["looks_like"].to_pylist()) == true).double().mean()) > 0.9
    assert table["id"].null_count == 200


def test_stability_and_plasticity_are_influences_through_the_head():
    """Against the influence core, in the scope of the head, with a step so short that the goal's
    gradient is the same behind it."""
    learner = learned()
    x, y = examples([0, 1, 2, 3], 3, 8)
    memory = learner._trainer.learner.memory
    held = memory.occupied
    labels = memory.labels[held]
    stands = memory.pinned[held] | ~torch.isin(labels, labels[memory.pinned[held]])
    goals = [held[stands & (memory.tasks[held] == task)] for task in (0, 1)]
    old, new = ((memory.inputs[slots], memory.labels[slots]) for slots in goals)
    loss = nn.CrossEntropyLoss(reduction="none")
    model = learner.model.eval()
    true = sp_influence(model, loss, batch=(x, y), old=old, new=new, lr=1e-4, scope="2.")
    table = learner.judge((x, y))
    for name in ("stability", "plasticity"):
        ours = torch.tensor(table[name].to_pylist(), dtype=torch.float32)
        per_step = getattr(true, name) / 1e-4
        assert ours.tolist() == pytest.approx(per_step.tolist(), rel=2e-2, abs=1e-4)


def test_judging_changes_nothing(tmp_path):
    one, other = learned(), learned()
    arrivals = examples([0, 1], 20, 5)
    before = everything(one)
    table = one.judge(arrivals, ids=list(range(500, 540)))
    assert table["id"].to_pylist() == list(range(500, 540))
    assert everything(one) == before
    one.save(tmp_path / "one")
    back = ContinualLearner.load(tmp_path / "one", net())
    assert back.judge(arrivals).equals(one.judge(arrivals))
    for learner in (back, other):
        learner.learn(examples([1, 2], 20, 6), ids=list(range(900, 940)), progress=False)
    assert everything(back) == everything(other)
    assert pinned(back) == pinned(other)


def test_wrong_labels_are_not_remembered():
    x, given, wrong = swapped([0, 1], 40, 1, 0.3)
    learner = ContinualLearner(net(), "metasp-robust", memory=24, epochs=6, lr=0.05, seed=3)
    learner.learn((x, given), trusted=examples([0, 1], 4, 9), progress=False)
    held = set(learner.memory.ids.tolist())
    assert not {i for i in held if i < 80 and wrong[i]}


def test_names_of_classes_come_back_and_classes_without_anyone_are_not_judged():
    learner = ContinualLearner(net(), "metasp-robust", memory=24, epochs=2, lr=0.05)
    x, y = examples([0, 1], 20, 1)
    words = ["ant", "bee"]
    learner.learn((x, [words[label] for label in y.tolist()]), progress=False)
    table = learner.judge((x, [words[label] for label in y.tolist()]))
    assert set(table["looks_like"].to_pylist()) <= set(words)
    assert table["label"].to_pylist()[0] == "ant"
    numbers = learned()
    learner = ContinualLearner(net(), "er", memory=24, epochs=1, lr=0.05)
    learner.learn(examples([0, 1], 20, 1), progress=False)
    unknown = learner.judge(examples([0, 3], 5, 2))
    assert unknown["wrong"].to_pylist()[5:] == [None] * 5
    assert numbers.tasks == 2


def test_what_cannot_be_judged_is_one_sentence():
    fresh = ContinualLearner(net(), "metasp-robust", memory=24)
    with pytest.raises(UserError, match="no class has been learned yet"):
        fresh.judge(examples([0, 1], 5, 1))
    bare = ContinualLearner(net(), "finetune", epochs=1, lr=0.05)
    bare.learn(examples([0, 1], 20, 1), progress=False)
    with pytest.raises(UserError, match="the memory is empty"):
        bare.judge(examples([0, 1], 5, 1))


def test_classes_that_have_no_output_yet_and_features_can_be_judged():
    """A new class is judged by what is known; with an encoder whose features alone are kept, as the
    same features given as inputs."""
    torch.manual_seed(0)
    encoder, (x, y) = nn.Linear(6, 6).eval(), examples([0, 1], 40, 1)
    names = [f"kind {label}" for label in y.tolist()]
    with torch.no_grad():
        features = encoder(x)

    def learner(data, **given):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(6, 2))
        own = ContinualLearner(model, "er", memory=12, epochs=2, head="0", **given)
        return own.learn((data, names), progress=False)

    given = ["kind 1", "new", "kind 1", "new", "new"]
    kept = {"encoder": FrozenEncoder(encoder), "keep": "features"}
    one = learner(x, **kept).judge((x[:5], given))
    two = learner(features).judge((features[:5], given))
    assert one.column("label").to_pylist() == given
    assert one.column("wrong").is_null().to_pylist() == [False, True, False, True, True]
    for name in ("stability", "plasticity", "wrong", "looks_like"):
        ours, theirs = (table.column(name).to_pylist() for table in (one, two))
        told = [pytest.approx(v, rel=1e-3, abs=1e-5) if isinstance(v, float) else v for v in theirs]
        assert ours == told
