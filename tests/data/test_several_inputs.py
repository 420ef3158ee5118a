"""An .npz file with several inputs, learned by a model of one's own in a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import metasp
from metasp.errors import UserError

SETTINGS = {"method": "er", "tasks": 2, "epochs": 2, "memory": 40, "limit_per_class": 40,
            "threads": 1, "augment": False}  # fmt: skip


class Halves(nn.Module):
    """Reads the upper half as numbers and the lower half as levels of grey."""

    def __init__(self):
        super().__init__()
        self.levels, self.net = nn.Embedding(17, 2), nn.Linear(32 + 64, 10)

    def forward(self, upper, lower):
        assert upper.dtype == torch.float32
        assert lower.dtype == torch.int64
        return self.net(torch.cat([upper, self.levels(lower).flatten(1)], 1))


def write(path: Path, **changes) -> str:
    found = load_digits()
    arrays = {
        "inputs.upper": found.data[:, :32] / 16,
        "inputs.lower": found.data[:, 32:].astype(np.int32),
        "labels": found.target,
        "text": np.array([f"a {label}" for label in found.target]),
        **changes,
    }
    np.savez(path / "halves.npz", **{k: v for k, v in arrays.items() if v is not None})
    return f"arrays:{path / 'halves.npz'}"


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({}, {"model": None}, r"several inputs .*lower.*as model= of metasp.run"),
        ({"inputs.upper": np.zeros((5, 3))}, {}, "different lengths, 1797 of lower and 5 of upper"),
        ({"inputs": np.zeros((1797, 3))}, {}, "holds both inputs and inputs.lower"),
        ({"inputs.words": np.array(["a"] * 1797)}, {}, "inputs.words has shape"),
        ({"inputs.upper": None}, {}, "cannot take the examples"),
        ({}, {"method": "gmed"}, "gmed needs inputs that are one tensor"),
        (
            {},
            {"method": "metasp-rehsel"},
            "a selection that clusters pixels needs inputs that are one tensor",
        ),
    ],
)
def test_what_cannot_be_learned(tmp_path, changes, settings, words):
    name = write(tmp_path, **changes)
    with pytest.raises(UserError, match=words):
        metasp.run(name, runs=tmp_path / "runs", **{"model": Halves, **SETTINGS, **settings})
