"""A PyTorch Lightning callback: each batch of the user's own training gets a batch from memory.

callback = RehearsalCallback(memory=500)
for loader in tasks:
    Trainer(max_epochs=5, callbacks=[callback]).fit(module, loader)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from metasp.errors import UserError
from metasp.learner.rehearsal import Rehearsal, label_key

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its older name
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise UserError("this needs Lightning: pip install 'metasp[lightning]'.") from error


class RehearsalCallback(Callback):  # type: ignore[misc]
    """Adds a memory to a `LightningModule`'s training: `training_step` gets batches that end with
    examples from memory, in the form of its own (a pair, or a dictionary with `labels`).

    The settings are those of `metasp.learner.rehearsal.Rehearsal`. Each `fit` is a new task. The
    module finds the weight of each row of its batch in ``self.example_weights``, (n,) with sum one:
    all equal, or by influence with ``influence=True``, for a loss of ``(self.example_weights *
    losses).sum()``. Checkpoints of Lightning hold the memory, and a resumed training has it.
    """

    def __init__(self, rehearsal: Rehearsal | None = None, **settings: Any) -> None:
        super().__init__()
        if rehearsal is not None and settings:
            raise UserError("give either a rehearsal or its settings, not both.")
        self.rehearsal = rehearsal or Rehearsal(**settings)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stand between the module's data and its training step."""
        if stage != "fit":
            return
        before = pl_module.on_after_batch_transfer

        def with_replay(batch: Any, dataloader_idx: int) -> Any:
            batch = before(batch, dataloader_idx)
            return self._extended(trainer, pl_module, batch) if trainer.training else batch

        pl_module.on_after_batch_transfer = with_replay

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the module as it was."""
        if stage == "fit":
            vars(pl_module).pop("on_after_batch_transfer", None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise UserError("a rehearsal follows one optimizer: train with one.")
        clips, way = trainer.gradient_clip_val or None, trainer.gradient_clip_algorithm
        if clips and self.rehearsal.influence and way == "value":
            raise UserError(
                "the pseudo step of influence clips gradients by their norm and not by value: "
                'train with gradient_clip_algorithm="norm", or without influence.'
            )
        self.rehearsal.begin(pl_module, trainer.optimizers[0], clips)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.rehearsal.remember()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.rehearsal.state_dict().items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        self.rehearsal.load_state_dict(state_dict)

    def _extended(self, trainer: Any, module: Any, batch: Any) -> Any:
        first = trainer.current_epoch == 0
        if isinstance(batch, Mapping):
            key = label_key(batch)
            inputs = {name: value for name, value in batch.items() if name != key}
            extended = self.rehearsal.extended(inputs, batch[key], first)
            module.example_weights = extended.weights
            return {**dict(extended.inputs), key: extended.labels}  # type: ignore[arg-type]
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UserError(
                "a rehearsal takes batches that are a pair of inputs and labels, or a dictionary "
                "with labels: bring them to one of these forms."
            )
        extended = self.rehearsal.extended(batch[0], batch[1], first)
        module.example_weights = extended.weights
        pair = (extended.inputs, extended.labels)
        return list(pair) if isinstance(batch, list) else pair
