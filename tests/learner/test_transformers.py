"""The Hugging Face Trainer with the real transformers, on a tiny random BERT."""

import pytest
import torch

from metasp.errors import UserError
from metasp.learner.rehearsal import Rehearsal

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which its Trainer needs, is not installed")
from metasp.learner.transformers import FILE, RehearsalTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=4,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def task(number, count=48):
    """Sentences of six tokens; the class is which of its own ten words are in them."""
    generator = torch.Generator().manual_seed(number)
    rows = []
    for index in range(count):
        label = 2 * number + index % 2
        ids = torch.randint(10 * label, 10 * label + 10, (6,), generator=generator)
        rows.append({"input_ids": ids, "attention_mask": torch.ones(6).long(), "labels": label})
    return rows


def trainer(model, rehearsal, number, folder, kind=RehearsalTrainer, epochs=2, **changes):
    options = {
        "num_train_epochs": epochs, "per_device_train_batch_size": 8, "learning_rate": 3e-3,
        "save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "seed": 1, **changes,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **options)
    more = {} if kind is transformers.Trainer else {"rehearsal": rehearsal}
    return kind(model, arguments, train_dataset=task(number), **more)


def accuracy(model, number):
    rows = task(number)
    ids = torch.stack([row["input_ids"] for row in rows])
    with torch.no_grad():
        said = model.eval()(input_ids=ids).logits.argmax(1)
    return float((said == torch.tensor([row["labels"] for row in rows])).float().mean())


@pytest.mark.slow
def test_a_training_with_memory_remembers(tmp_path):
    rehearsal, model, bare = Rehearsal(memory=24, memory_batch=8), bert(), bert()
    for number in range(2):
        trainer(model, rehearsal, number, tmp_path, epochs=6).train()
        trainer(bare, None, number, tmp_path, transformers.Trainer, epochs=6).train()
    assert rehearsal.memory.offered == 96
    assert {*rehearsal.memory.tasks.tolist()} == {0, 1}
    assert rehearsal.memory.inputs["input_ids"].shape == (24, 6)
    assert accuracy(model, 0) > accuracy(bare, 0) + 0.3


@pytest.mark.parametrize("influence", [False, True])
def test_a_resumed_training_has_the_same_memory_and_weights(tmp_path, influence):
    def first():
        rehearsal, model = Rehearsal(memory=16, memory_batch=8, influence=influence), bert()
        trainer(model, rehearsal, 0, tmp_path / "first", epochs=1).train()
        assert rehearsal._running().clip_norm == 1.0  # as a Trainer does unless told otherwise
        return rehearsal, model

    saving = {"save_strategy": "steps", "save_steps": 4}
    whole, model = first()
    trainer(model, whole, 1, tmp_path / "whole", **saving).train()
    at = tmp_path / "whole" / "checkpoint-4"
    assert (at / FILE).is_file()
    again, other = Rehearsal(memory=16, memory_batch=8, influence=influence), bert()
    resumed = trainer(other, again, 1, tmp_path / "whole", **saving)
    resumed.train(resume_from_checkpoint=str(at))
    one, two = whole.state_dict(), again.state_dict()
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.numpy().tobytes() == two[name].numpy().tobytes(), name
    for mine, theirs in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs)


def test_mistakes(tmp_path):
    made = trainer(bert(), Rehearsal(), 0, tmp_path)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(UserError, match="saved without a rehearsal"):
        made.train(resume_from_checkpoint=True)
    made.train_dataset = [{"input_ids": row["input_ids"]} for row in task(0)]
    with pytest.raises(UserError, match="no labels"):
        made.train()
