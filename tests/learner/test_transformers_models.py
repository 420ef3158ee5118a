"""Models of transformers, tiny and random, in a learner: text as a dictionary, and pictures."""

import pytest
import torch

from metasp.learner import ContinualLearner

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=4, initializer_range=0.2,
    ))  # fmt: skip


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16, num_labels=4, initializer_range=0.2,
    ))  # fmt: skip


def resnet():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        layer_type="basic", num_labels=4,
    ))  # fmt: skip


def text(number):
    """The class is of which ten words a sentence is made."""
    labels = torch.arange(64) % 2 + 2 * number
    ids = 10 * labels[:, None] + torch.randint(10, (64, 6))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels


def pictures(number):
    """The class is which quarter is bright."""
    labels = torch.arange(64) % 2 + 2 * number
    inputs = torch.randn(64, 1, 8, 8)
    for row, label in enumerate(labels.tolist()):
        inputs[row, 0, 4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 3
    return inputs, labels


@pytest.mark.parametrize("method", ["er", "metasp"])
@pytest.mark.parametrize(("make", "task"), [(bert, text), (vit, pictures), (resnet, pictures)])
def test_a_model_of_transformers_learns_and_comes_back(tmp_path, make, task, method):
    torch.manual_seed(0)
    data = [task(number) for number in range(2)]
    options = {"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3)}
    made = ContinualLearner(make(), method, memory=12, epochs=10, batch_size=8, **options)
    for part in data:
        made.learn(part, progress=False)
    assert made.score(data[1]) > 0.6  # by chance 0.25; with the task known but not the class 0.5
    made.save(tmp_path / "saved")
    again = ContinualLearner.load(tmp_path / "saved", make(), **options)
    assert torch.equal(again.outputs(data[0][0]), made.outputs(data[0][0]))
