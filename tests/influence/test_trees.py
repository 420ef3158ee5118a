"""Inputs may be a tuple or a dictionary of tensors, as transformers take them."""

import collections
import copy

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.influence import (
    example_influence,
    record,
    sp_influence,
    virtual_parameters,
    with_parameters,
)
from metasp.trees import call
from tests.influence.test_core import LOSS, close
from tests.oracles import influence_through_weights, sgd, torch_step


def bert():
    """A tiny BERT with dropout, and a way to draw sentences of several lengths."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=12, num_labels=4,
    )  # fmt: skip

    def draw(count):
        lengths = torch.randint(3, 8, (count, 1))
        mask = (torch.arange(7) < lengths).long()
        return {"input_ids": torch.randint(1, 30, (count, 7)) * mask, "attention_mask": mask}

    return transformers.BertForSequenceClassification(config), draw


def vit():
    """A tiny ViT, and a way to draw pictures."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=3, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, num_labels=4,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), lambda count: {
        "pixel_values": torch.randn(count, 3, 8, 8, dtype=torch.float64)
    }


class Pair(nn.Module):
    """Two inputs, one of them a nest."""

    def __init__(self):
        super().__init__()
        self.words, self.numbers = nn.Embedding(9, 5), nn.Linear(3, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, words, rest):
        return self.head(torch.tanh(self.words(words).mean(1) + self.numbers(rest["numbers"][0])))


def pair():
    return Pair(), lambda count: (
        torch.randint(9, (count, 4)),
        {"numbers": [torch.randn(count, 3, dtype=torch.float64)]},
    )


SLOW = [
    pytest.param(make, marks=pytest.mark.slow) for make in (bert, vit)
]  # they load transformers
MODELS = [*SLOW, pair]


def problem(make):
    """A model in float64 and three batches, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, draw = make()
        model.double().train()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        batches = [(draw(n), torch.randint(4, (n,))) for n in (6, 5, 7)]
    return model, *batches


def adamw(model, batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    with torch.random.fork_rng():
        for i in range(3):
            optimizer.zero_grad()
            inputs = batch[0]
            out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
            LOSS(getattr(out, "logits", out), (batch[1] + i) % 4).mean().backward()
            optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("make", MODELS)
def test_equals_the_gradient_through_the_weights(make, steps):
    model, batch, old, new = problem(make)
    optimizer = adamw(model, new)
    r = sp_influence(model, LOSS, batch, old, new, optimizer=optimizer, steps=steps)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for found, goal in ((r.stability, old), (r.plasticity, new)):
            step = torch_step(optimizer, model)
            wanted = influence_through_weights(model, LOSS, batch, goal, step, steps)
            assert wanted.abs().max() > 1e-6
            assert close(found, wanted, 1e-8)
    assert r.path == "tape"


@pytest.mark.parametrize("make", MODELS)
def test_the_recorded_pass_and_the_scope(make):
    model, batch, old, new = problem(make)
    head = "head" if make is pair else "classifier"
    names = {k for k, _ in model.named_parameters() if k.startswith(head)}
    state = torch.get_rng_state()
    recorded = record(model, LOSS, batch)
    twin = (copy.deepcopy(batch[0]), batch[1])  # equal, though not the same tensors
    r = sp_influence(model, LOSS, twin, old, new, lr=0.1, scope=head, recorded=recorded)
    torch.set_rng_state(state)
    wanted = influence_through_weights(model, LOSS, batch, old, sgd(0.1), names=names)
    assert close(r.stability, wanted, 1e-8)
    with pytest.raises(UserError, match="another batch"):
        sp_influence(model, LOSS, old, old, new, lr=0.1, recorded=recorded)


@pytest.mark.slow
def test_a_dictionary_of_another_kind_is_one():
    model, batch, old, _ = problem(bert)
    wanted = example_influence(model, LOSS, batch, old, lr=0.1)
    odd = [(collections.UserDict(x), y) for x, y in (batch, old)]  # as tokenizers give
    assert torch.equal(example_influence(model, LOSS, *odd, lr=0.1), wanted)


def test_virtual_parameters_and_evaluating_there():
    model, batch, _, _ = problem(pair)
    moved = virtual_parameters(model, LOSS, batch, 0.1)
    with with_parameters(model, moved):
        outputs = call(model, batch[0])
    LOSS(model(*batch[0]), batch[1]).mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.testing.assert_close(outputs, model(*batch[0]))


def test_a_bad_example_is_found_in_a_tree():
    model, batch, old, new = problem(pair)
    batch[0][1]["numbers"][0][2] = torch.nan
    with pytest.raises(UserError, match="example 2 of the batch"):
        sp_influence(model, LOSS, batch, old, new, lr=0.1)


WRONG = {
    "lengths": ({"a": torch.zeros(3, 2), "b": torch.zeros(4, 2)}, r"\['b'\] of shape \(4, 2\)"),
    "a word": ({"a": torch.zeros(3, 2), "b": "word"}, r"inputs\['b'\] of the batch is a str"),
    "nothing": ({}, "batch is empty"),
    "a number": ((torch.zeros(3, 2), torch.zeros(())), r"inputs\[1\] of shape \(\)"),
    "a device": ({"a": torch.zeros(3, 2, device="meta")}, r"\['a'\] of the batch are on meta"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_mistake_gets_one_sentence(kind):
    model, _, old, new = problem(pair)
    inputs, word = WRONG[kind]
    with pytest.raises(UserError, match=word) as caught:
        sp_influence(model, LOSS, (inputs, torch.zeros(3).long()), old, new, lr=0.1)
    assert str(caught.value).endswith(".")
