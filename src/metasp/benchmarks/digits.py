"""scikit-learn's 8×8 digits: real images that need no download."""

import hashlib

import torch
from sklearn.datasets import load_digits

from metasp.benchmarks.source import Source


def digits() -> Source:
    """1,797 grey images of ten digits; every fifth image of each class is test data."""
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images * 15).to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
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
