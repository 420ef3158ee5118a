import torch

from metasp.data.transform import Transform, random_crop, random_flip
from metasp.types import Streams


def images(n=64):
    return torch.randint(1, 256, (n, 3, 8, 8), generator=Streams(0)["images"], dtype=torch.uint8)


def test_normalisation_by_hand():
    raw = images(2)
    got = Transform((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))(raw)
    assert torch.allclose(got[1, 2], (raw[1, 2].double() / 255 - 0.3).float() / 0.4, atol=1e-6)


def test_every_crop_is_a_shift_and_all_shifts_occur():
    raw = images(400)
    out = random_crop(raw, 2, Streams(1)["augment"])
    assert out.shape == raw.shape
    padded = torch.nn.functional.pad(raw, (2,) * 4)
    shifts = set()
    for before, after in zip(padded, out):
        found = [(i, j) for i in range(5) for j in range(5)
                 if torch.equal(before[:, i : i + 8, j : j + 8], after)]  # fmt: skip
        assert len(found) == 1
        shifts |= set(found)
    assert len(shifts) == 25


def test_flips_are_mirrors_of_about_half():
    raw = images(400)
    out = random_flip(raw, Streams(1)["augment"])
    flipped = [bool(torch.equal(a.flip(-1), b)) for a, b in zip(raw, out)]
    same = [bool(torch.equal(a, b)) for a, b in zip(raw, out)]
    assert all(f != s for f, s in zip(flipped, same))
    assert 150 < sum(flipped) < 250


def test_augmentation_is_the_generators_and_off_without_one():
    transform = Transform((0.5,) * 3, (0.2,) * 3, crop_padding=2, flip=True)
    raw = images()
    one, two = (transform(raw, Streams(5)["augment"]) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, transform(raw, Streams(6)["augment"]))
    assert torch.equal(transform(raw), transform(raw))
