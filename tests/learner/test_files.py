"""A learner as a file: the same bits after a load, and files that must not be used."""

import json

import pytest
import torch
from torch import nn

from metasp.errors import UserError
from metasp.learner import ContinualLearner
from tests.learner.factories import (
    KNOWN,
    everything,
    net,
    pair,
    quick,
)


@pytest.mark.parametrize("method", KNOWN)
def test_saved_and_loaded_is_never_stopped(tmp_path, method):
    """Dropout, momentum, a growing head, any method: the same bits after a load; and neither the
    user's random stream nor its state matters."""
    settings = {"momentum": 0.5, "lr": 0.02, "head": "3"}
    whole = quick(net(2), method, **settings)
    for task in range(2):
        whole.learn(pair(task, 60), progress=False)
    whole.save(tmp_path / "file")
    before = torch.get_rng_state()
    whole.learn(pair(2, 60), progress=False)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    again = ContinualLearner.load(tmp_path / "file", net(2, seed=9))
    again.learn(pair(2, 60), progress=False)
    assert everything(again) == everything(whole)
    assert whole.model[3].out_features == 6
    assert again.influence().equals(whole.influence())


def altered(content: bytes, change) -> bytes:
    """The file with its JSON changed by the given function, lengths mended."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["metasp"])
    change(about)
    header["__metadata__"]["metasp"] = json.dumps(about)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_files_that_must_not_be_used(tmp_path):
    file = tmp_path / "file"
    learner = quick(method="er").learn(pair(0), progress=False)
    learner.save(file)
    good = file.read_bytes()
    for content, words in (
        (altered(good, lambda about: about.update(format=5)), "has format 5 and this metasp reads"),
        (altered(good, lambda about: about.update(next_id=0)), "damaged"),
        (good[:-1], "damaged"),
        (good[:100], "not a saved learner"),
        (good[:-3] + bytes([good[-3] ^ 1]) + good[-2:], "damaged"),
        (b"", "not a saved learner"),
        ((10**5).to_bytes(8, "little") + b"[" * 10**5, "not a saved learner"),
    ):
        file.write_bytes(content)
        with pytest.raises(UserError, match=words):
            ContinualLearner.load(file, net())
    file.write_bytes(good)
    for model, words in (
        (
            net(12),
            r"'3.bias' is .*float32 of shape \(10,\) in the file and .* \(12,\) here",
        ),
        (nn.Linear(64, 10), "which this model has not"),
        (nn.Sequential(*net(), nn.Linear(10, 10)), "which the file does not hold"),
    ):
        with pytest.raises(UserError, match=words):
            ContinualLearner.load(file, model)
    with pytest.raises(UserError, match="cannot read"):
        ContinualLearner.load(tmp_path / "none", net())
    with pytest.raises(UserError, match="cannot write"):
        learner.save(file / "below")
    learner.learn(pair(1), progress=False)
    learner.save(file)  # in place
    assert ContinualLearner.load(file, net()).tasks == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
