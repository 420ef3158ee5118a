"""The Lightning callback with the real Lightning."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from metasp.errors import UserError
from tests.learner.factories import net, pair

lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
from metasp.learner.lightning import RehearsalCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    """A module as anybody writes it; `weighed` is the one line that weights need."""

    def __init__(self, weighed=False):
        super().__init__()
        self.net, self.weighed, self.sizes = net(), weighed, []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        self.sizes.append(len(y))
        losses = F.cross_entropy(self(x), y, reduction="none")
        return (self.example_weights * losses).sum() if self.weighed else losses.mean()

    def validation_step(self, batch, index):
        assert len(batch[1]) <= 30

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, callback, number, folder, epochs=2, more=(), **options):
    loader = DataLoader(TensorDataset(*pair(number)), batch_size=30)
    lightning.seed_everything(number, verbose=False)
    lightning.Trainer(
        max_epochs=epochs, callbacks=[callback, *more], accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        enable_checkpointing=bool(more),
    ).fit(module, loader, loader, **options)  # fmt: skip


def accuracy(module, number):
    x, y = pair(number)
    with torch.no_grad():
        return float((module.net.eval()(x).argmax(1) == y).float().mean())


def test_a_training_with_memory_remembers(tmp_path):
    callback, module = RehearsalCallback(memory=60, memory_batch=30), Module()
    for number in range(2):
        fit(module, callback, number, tmp_path, epochs=8)
    assert module.sizes == [30] + [60] * 63
    assert callback.rehearsal.memory.offered == 240
    assert "on_after_batch_transfer" not in vars(module)
    bare = Module()
    for number in range(2):
        fit(bare, lightning.Callback(), number, tmp_path, epochs=8)
    assert accuracy(module, 0) > accuracy(bare, 0) + 0.3


class StopAt(lightning.Callback):
    """Ends the process's training in the middle of an epoch, as a kill would, after a save."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


@pytest.mark.parametrize("influence", [False, True])
def test_a_resumed_training_has_the_same_memory(tmp_path, influence):
    def made():
        callback = RehearsalCallback(memory=20, memory_batch=10, influence=influence)
        module = Module(weighed=influence)
        fit(module, callback, 0, tmp_path, epochs=1)
        return module, callback

    whole, kept = made()
    fit(whole, kept, 1, tmp_path)
    module, callback = made()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(module, callback, 1, tmp_path, more=[StopAt(tmp_path / "at.ckpt", 4)])
    again, restored = Module(weighed=influence), RehearsalCallback(
        memory=20, memory_batch=10, influence=influence
    )  # fmt: skip
    fit(again, restored, 1, tmp_path, ckpt_path=tmp_path / "at.ckpt")
    one, other = kept.rehearsal.state_dict(), restored.rehearsal.state_dict()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.numpy().tobytes() == other[name].numpy().tobytes(), name


def test_dictionaries_and_mistakes(tmp_path):
    class Named(Module):
        def training_step(self, batch, index):
            return F.cross_entropy(self(batch["x"]), batch["labels"])

        def validation_step(self, batch, index):
            pass

    x, y = pair(0)
    loader = DataLoader([{"x": a, "labels": b} for a, b in zip(x, y)], batch_size=30)
    quiet = {
        "max_epochs": 1, "logger": False, "enable_progress_bar": False, "accelerator": "cpu",
        "enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": tmp_path,
    }  # fmt: skip
    callback = RehearsalCallback(memory=20)
    lightning.Trainer(callbacks=[callback], **quiet).fit(Named(), loader)
    assert callback.rehearsal.memory.inputs["x"].shape == (20, 64)
    triples = DataLoader(TensorDataset(x, x, y), batch_size=30)
    with pytest.raises(UserError, match="a pair of inputs and labels"):
        lightning.Trainer(callbacks=[RehearsalCallback()], **quiet).fit(Module(), triples)
    watched = RehearsalCallback(memory=20, influence=True)
    lightning.Trainer(callbacks=[watched], gradient_clip_val=0.5, **quiet).fit(Named(), loader)
    assert watched.rehearsal._running().clip_norm == 0.5
    by_value = {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}
    with pytest.raises(UserError, match="by their norm and not by value"):
        lightning.Trainer(callbacks=[watched], **by_value, **quiet).fit(Named(), loader)
    with pytest.raises(UserError, match="not both"):
        RehearsalCallback(callback.rehearsal, memory=3)
