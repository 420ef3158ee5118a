"""scikit-learn's 8×8 digits: real images that need no download."""

import hashlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from metasp.data.source import Source, refuse, split_column
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.trees import one_tensor

ANGLES = (0, 30, 60, 90, 120)  # below 180, where a 6 becomes a 9


def digits(spec: RunSpec | None = None) -> Source:
    """Return 1,797 grey images of ten digits; every fifth of each class is test data."""
    spec = spec or RunSpec()
    refuse(spec, "the digits")
    if split_column(spec) is not None:
        raise UserError("split-digits has no columns: use --split-by class or order.")
    rows = stored_rows()
    pixels = (rows[:, :-1] * 15).to(torch.uint8).reshape(-1, 1, 8, 8)
    labels = rows[:, -1]
    ids = torch.arange(len(labels))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        held_out[torch.nonzero(labels == label).flatten()[::5]] = True
    train = pixels[~held_out].float() / 255
    return Source(
        name="digits",
        inputs=pixels[~held_out],
        labels=labels[~held_out],
        test_inputs=pixels[held_out],
        test_labels=labels[held_out],
        class_names=tuple(str(label) for label in range(10)),
        mean=(round(float(train.mean()), 4),),
        std=(round(float(train.std()), 4),),
        digest=hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16],
        tasks=5,
        ids=ids[~held_out],
    )


def stored_rows() -> Tensor:
    """Return whole numbers (1797, 65): the pixels of each image from 0 to 16, and its label. They
    are read from the file of `load_digits`: scikit-learn takes longer to load than a run to
    start."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return torch.from_numpy(np.loadtxt(file, delimiter=",")).long()


def rotated_digits(spec: RunSpec) -> Source:
    """Return all digits once per angle: the same ten classes in every task, turned a little
    further. The id of a turned digit is that of the digit plus 1,797 for each angle before it."""
    if split_column(spec) not in (None, "angle"):
        raise UserError("rotated-digits has one column to split by: use --split-by column:angle.")
    upright = digits(spec.with_(split_by=None))
    total = len(upright.labels) + len(upright.test_labels)
    count = len(ANGLES)
    inputs, tests = (
        torch.cat([turned(one_tensor(side, "turning"), angle) for angle in ANGLES])
        for side in (upright.inputs, upright.test_inputs)
    )
    train = inputs.float() / 255
    return replace(
        upright,
        name="rotated digits",
        inputs=inputs,
        labels=upright.labels.repeat(count),
        test_inputs=tests,
        test_labels=upright.test_labels.repeat(count),
        mean=(round(float(train.mean()), 4),),
        std=(round(float(train.std()), 4),),
        digest=hashlib.sha256(inputs.numpy().tobytes()).hexdigest()[:16],
        ids=torch.cat([upright.train.ids + total * number for number in range(count)]),
        domains=torch.arange(count).repeat_interleave(len(upright.labels)),
        test_domains=torch.arange(count).repeat_interleave(len(upright.test_labels)),
        domain_names=tuple(f"{angle}°" for angle in ANGLES),
        split_by="column:angle",
    )


def turned(images: Tensor, angle: int) -> Tensor:
    """Return bytes (n, 1, 8, 8), turned counter-clockwise about the middle."""
    from scipy.ndimage import rotate

    values = rotate(images.float().numpy(), angle, axes=(3, 2), reshape=False, order=1)
    return torch.from_numpy(np.clip(np.rint(values), 0, 255).astype(np.uint8))
