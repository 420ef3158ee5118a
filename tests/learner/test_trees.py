"""Inputs that are several tensors: models of transformers, learned with, saved, forgotten."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from metasp import ContinualLearner
from metasp.errors import UserError
from metasp.learner.inputs import read_examples as read
from metasp.methods import METHODS
from tests.learner.factories import X, everything, net, pair, quick

WORDS, LENGTH = 30, 6


def bert(classes: int = 2) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                   intermediate_size=16, max_position_embeddings=LENGTH, num_labels=classes)
    )  # fmt: skip


def vit(classes: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1,
                  num_attention_heads=2, intermediate_size=16, num_labels=classes)
    )  # fmt: skip


def texts(task: int, count: int = 40) -> dict[str, torch.Tensor]:
    """Two classes, told apart by the words that they use; some sentences are shorter."""
    draw = torch.Generator().manual_seed(task)
    labels = torch.arange(count) % 2
    words = torch.randint(0, 5, (count, LENGTH), generator=draw) + 10 * task + 5 * labels[:, None]
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (count, 1), generator=draw)).long()
    return {"input_ids": words * mask, "attention_mask": mask, "labels": labels + 2 * task}


def pictures(task: int) -> dict[str, torch.Tensor]:
    inputs, labels = pair(task, 40)
    return {"pixel_values": inputs.reshape(-1, 1, 8, 8), "labels": labels}


WORLDS = {"bert": (bert, texts), "vit": (vit, pictures)}


def learner_of(world: str, method: str) -> ContinualLearner:
    settings = {"candidates": 20} if method == "mir" else {}
    return ContinualLearner(
        WORLDS[world][0](), method, memory=12, epochs=2, batch_size=10, memory_batch=10, lr=0.05,
        head="classifier", settings=settings,
    )  # fmt: skip


def without_labels(data):
    return {name: column for name, column in data.items() if name != "labels"}


@pytest.mark.parametrize("world", ["bert", "vit"])
@pytest.mark.parametrize("method", ["er", "derpp", "metasp", "gss", "mir"])
def test_transformers_learn_and_go_on_to_the_same_bits(tmp_path, world, method):
    make, tasks = WORLDS[world]
    learner = learner_of(world, method).learn(tasks(0), progress=False)
    learner.save(tmp_path / "learner")
    again = ContinualLearner.load(tmp_path / "learner", make())
    for each in (learner, again):
        each.learn(tasks(1), test=tasks(1), progress=False)
    assert everything(learner) == everything(again)
    assert learner.model.classifier.out_features == 4
    data = tasks(0)
    assert torch.equal(learner.predict(without_labels(data)), learner.predict(data))
    held, label = learner.memory[0]
    assert held.keys() == without_labels(data).keys()
    given = tasks(int(label) // 2)
    row = int(learner.memory.ids[0]) % 40
    assert all(torch.equal(held[name], given[name][row]) for name in held)
    if method == "metasp":
        assert learner.influence().num_rows > 40


def test_forgetting_leaves_no_trace(tmp_path):
    learner = learner_of("bert", "er").learn(texts(0), progress=False)
    gone = learner.memory.ids[:3].tolist()
    slots = [learner.memory.table().column("slot")[i].as_py() for i in range(3)]
    learner.forget(gone, reason="asked")
    state = learner._session.content()[0]
    for name in ("memory/inputs['input_ids']", "memory/inputs['attention_mask']"):
        assert len(state[name]) == 12  # a row per slot
        assert not state[name][slots].any()
        assert state[name].any()
    learner.learn(texts(0), ids=range(40), progress=False)  # they never come back
    assert not {*gone} & {*learner.memory.ids.tolist()}


class Named(Dataset):
    """Examples as the rows of Hugging Face's data sets: a dictionary of lists."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        data = texts(0)
        return {name: column[index].tolist() for name, column in data.items()}


class Paired(Named):
    def __getitem__(self, index):
        row = dict(super().__getitem__(index))
        return row, row.pop("labels")


class InOrder(Named):
    def __getitem__(self, index):
        data = texts(0)
        words = (data["input_ids"][index], data["attention_mask"][index])
        return words, int(data["labels"][index])


def batches(size=7):
    data = {name: column[:20] for name, column in texts(0).items()}
    for start in range(0, 20, size):
        part = {name: column[start : start + size] for name, column in data.items()}
        yield part, part.pop("labels")


def columns():
    return {name: column[:20] for name, column in texts(0).items()}


@pytest.mark.parametrize(
    "data",
    [
        columns(),
        {name: column.numpy() for name, column in columns().items()},
        {name: column.tolist() for name, column in columns().items()},
        (without_labels(columns()), columns()["labels"]),
        {**without_labels(columns()), "label": columns()["labels"]},
        Named(),
        Paired(),
        DataLoader(Named(), batch_size=7, collate_fn=lambda rows: {
            name: torch.tensor([row[name] for row in rows]) for name in rows[0]}),
        [Named()[i] for i in range(20)],
        list(batches()),
        batches(),
        ({**part, "labels": labels} for part, labels in batches()),
    ],
    ids=lambda data: type(data).__name__,
)  # fmt: skip
def test_whatever_holds_dictionaries(data):
    found, wanted = read(data, torch.float32), columns()
    assert torch.equal(found.labels, wanted["labels"])
    for name, column in without_labels(wanted).items():
        assert torch.equal(found.inputs[name], column)


@pytest.mark.parametrize(
    "data",
    [
        (tuple(without_labels(columns()).values()), columns()["labels"]),
        InOrder(),
        DataLoader(InOrder(), batch_size=2),
        list(DataLoader(InOrder(), batch_size=6)),
    ],
)
def test_whatever_holds_tuples(data):
    found, wanted = read(data, torch.float32), columns()
    assert isinstance(found.inputs, tuple)
    assert torch.equal(found.inputs[0], wanted["input_ids"])
    assert torch.equal(found.inputs[1], wanted["attention_mask"])


def test_tokenizers_and_data_sets_of_hugging_face():
    from datasets import Dataset as Table
    from transformers import BatchEncoding

    lists = {name: column.tolist() for name, column in columns().items()}
    for data in (BatchEncoding(columns()), Table.from_dict(lists),
                 Table.from_dict(lists).with_format("torch")):  # fmt: skip
        found = read(data, torch.float32)
        assert torch.equal(found.inputs["input_ids"], columns()["input_ids"])
        assert torch.equal(found.labels, columns()["labels"])


LENGTHS = {"input_ids": torch.zeros(4, 6).long(), "attention_mask": torch.ones(3, 6).long()}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**LENGTHS, "labels": [0, 1, 0, 1]}, r"different lengths, 4 of inputs\['input_ids'\]"),
        ((tuple(LENGTHS.values()), [0, 1, 0, 1]), r"4 of inputs\[0\] and 3 of inputs\[1\]"),
        (
            {"input_ids": torch.zeros(4, 6).long(), "labels": [0, 1]},
            "and 2 of labels",
        ),
        ({"input_ids": torch.zeros(4, 6).long()}, "under `labels`"),
        (({}, [0, 1]), "name each input"),
        (({0: torch.zeros(2, 3)}, [0, 1]), "name each input"),
        (({"text": ["a", "b"]}, [0, 1]), "text of the dataset holds text as inputs"),
        (({"a": torch.full((2, 3), torch.nan)}, [0, 1]), r"input\['a'\] of example 0"),
        ([({"a": X[0]}, 0), ({"b": X[1]}, 1)], "not all of one kind"),
        ([({"a": X[0]}, 0), ({"a": X[1, :5]}, 1)], "by padding"),
    ],
)
def test_what_is_no_tree_of_tensors(data, words):
    with pytest.raises(UserError, match=words):
        read(data, torch.float32)


@pytest.mark.parametrize("method", ["hal", "gmed", "metasp-rehsel"])
def test_methods_that_need_one_tensor_say_so(method):
    learner = ContinualLearner(bert(), method, memory=12, epochs=1, head="classifier")
    before = everything(learner)
    with pytest.raises(UserError, match=r"several|not one tensor"):
        learner.learn(texts(0), progress=False)
    assert everything(learner) == before


EVERY = [name for name, recipe in METHODS.items() if "real inputs" not in recipe.kind.needs
         and name not in ("joint", "gdumb", "verified-only", "slda", "ridge")]  # fmt: skip


class TwoInputs(nn.Module):
    """The network of the other tests, whose inputs come in two halves."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, left, right):
        return self.net(torch.cat([left, right], 1))


@pytest.mark.parametrize("method", EVERY)
def test_every_method_learns_the_same_from_one_tensor_and_from_its_halves(method):
    """An answer that does not depend on the code for trees: the same numbers as one tensor."""
    selection = "rehsel-features" if METHODS[method].selection == "rehsel" else None
    whole = quick(net(), method, selection=selection)
    parts = quick(TwoInputs(), method, selection=selection)
    for number in range(2):
        inputs, labels = pair(number, 60)
        whole.learn((inputs, labels), progress=False)
        parts.learn(({"left": inputs[:, :30], "right": inputs[:, 30:]}, labels), progress=False)
    assert torch.equal(whole.memory.ids, parts.memory.ids)
    for ours, theirs in zip(parts.model.parameters(), whole.model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    x = X[:50]
    given = {"left": x[:, :30].numpy(), "right": np.asarray(x[:, 30:])}
    torch.testing.assert_close(parts.outputs(given), whole.outputs(x), rtol=1e-4, atol=1e-4)
    for row in range(len(whole.memory)):
        held, one = parts.memory[row][0], whole.memory[row][0]
        assert torch.equal(torch.cat([held["left"], held["right"]]), one)
