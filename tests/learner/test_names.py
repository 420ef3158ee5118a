"""Labels that are text: the learner numbers them as they come, and gives the names back."""

import pandas as pd
import pyarrow as pa
import pytest
import torch

from metasp import ContinualLearner
from metasp.errors import UserError
from tests.learner.factories import X, Y, everything, net, pair, quick

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def words(number: int, count: int = 60) -> tuple[torch.Tensor, list[str]]:
    inputs, labels = pair(number, count)
    return inputs, [NAMES[label] for label in labels.tolist()]


def test_names_grow_as_classes_come_and_come_back(tmp_path):
    learner = quick(net(2), "metasp", head="3").learn(words(1), progress=False)
    assert learner.class_names == ("three", "two")  # by the alphabet within a task
    learner.learn(words(0), test=words(0), progress=False)
    assert learner.class_names == ("three", "two", "one", "zero")
    assert learner.classes == (0, 1, 2, 3)
    said = learner.predict(X[:9], names=True)
    assert said == [learner.class_names[number] for number in learner.predict(X[:9]).tolist()]
    learner.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", net(4))
    assert again.class_names == learner.class_names
    assert again.predict(X[:9], names=True) == said
    for each in (learner, again):
        each.learn(words(2), progress=False)
    assert everything(learner) == everything(again)
    assert learner.class_names[4:] == ("five", "four")


def test_names_are_numbers_in_another_dress():
    """What is learned, remembered and scored is what numbers in the same order would give."""
    order = {"three": 0, "two": 1, "one": 2, "zero": 3}
    named, plain = quick(method="metasp"), quick(method="metasp")
    for number in (1, 0):
        inputs, labels = words(number)
        numbers = torch.tensor([order[label] for label in labels])
        named.learn((inputs, labels), progress=False)
        plain.learn((inputs, numbers), progress=False)
        assert named.score((inputs, labels)) == plain.score((inputs, numbers))
    ours, theirs = named.influence(), plain.influence()
    assert ours.drop_columns("name").equals(theirs)
    names = ours.column("name").to_pylist()
    assert [order[name] for name in names] == ours.column("label").to_pylist()
    held = named.memory.table()
    assert [order[n] for n in held.column("name").to_pylist()] == held.column("label").to_pylist()
    gone = named.forget(predicate=lambda row: row["name"] == "two")
    assert gone
    assert "two" not in named.memory.table().column("name").to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pd.Series, pd.Categorical, lambda names: pd.Series(names, dtype="string"),
        pa.array, lambda names: pa.chunked_array([names]), tuple,
        lambda names: [name.encode() for name in names],
    ],
)  # fmt: skip
def test_columns_of_names(column):
    inputs, labels = words(0)
    learner = quick(method="er").learn((inputs, column(labels)), progress=False)
    assert learner.class_names == ("one", "zero")
    rows = list(zip(inputs, labels))
    assert learner.score(rows) == learner.score((inputs, labels))


def test_a_name_that_was_never_learned_is_never_right():
    learner = quick(method="er").learn(words(0), progress=False)
    assert learner.score((X[Y == 5], ["five"] * int((Y == 5).sum()))) == 0.0
    assert learner.class_names == ("one", "zero")  # a test teaches nothing


def test_one_kind_of_labels():
    named = quick(method="er").learn(words(0), progress=False)
    before = everything(named)
    with pytest.raises(UserError, match="labels are numbers and the learner's classes are names"):
        named.learn(pair(1), progress=False)
    assert everything(named) == before
    plain = quick(method="er").learn(pair(0), progress=False)
    with pytest.raises(UserError, match="labels are names and the learner's classes are numbers"):
        plain.learn(words(1), progress=False)
    assert plain.class_names == ()
    with pytest.raises(UserError, match="learned as numbers"):
        plain.predict(X[:3], names=True)
    with pytest.raises(UserError, match="classes are numbers"):
        plain.trust(words(0, 5))


def test_verified_examples_by_name():
    learner = quick(method="er").learn(words(0), trusted=words(0, 4), progress=False)
    assert len(learner.trust(words(0, 3))) == 3
    with pytest.raises(UserError, match=r"class 'three', which no task has had: give .* one, zero"):
        learner.trust(words(1, 3))
