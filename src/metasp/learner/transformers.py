"""A Hugging Face Trainer whose batches end with examples from memory.

rehearsal = Rehearsal(memory=500)
for dataset in tasks:
    RehearsalTrainer(model, arguments, train_dataset=dataset, rehearsal=rehearsal).train()
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.learner import file_format
from metasp.learner.rehearsal import Rehearsal, label_key

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise UserError("this needs transformers: pip install 'metasp[transformers]'.") from error

FILE = "metasp-memory.safetensors"


class RehearsalTrainer(Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` with a memory: one more argument, `rehearsal`, which goes with all
    tasks of a stream. Each `train` is a new task.

    With ``Rehearsal(influence=True)`` the loss is the sum of the rehearsal's loss of each example
    times its weight by influence. A checkpoint holds the memory in a file beside its others, and
    ``train(resume_from_checkpoint=…)`` takes it from there.
    """

    def __init__(self, *arguments: Any, rehearsal: Rehearsal, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.rehearsal = rehearsal
        self._weights: Tensor | None = None
        self.add_callback(_Memory(rehearsal))

    def train(
        self, resume_from_checkpoint: "str | bool | None" = None, *arguments: Any, **keywords: Any
    ) -> Any:
        """Train as ever, or go on from a checkpoint with its memory."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]
        if folder:
            if not (Path(folder) / FILE).is_file():
                raise UserError(f"{folder} has no {FILE}: it was saved without a rehearsal.")
            path = Path(folder) / FILE
            self.rehearsal.load_state_dict(file_format.parse(file_format.read(path), path)[0])
        return super().train(resume_from_checkpoint, *arguments, **keywords)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Take one step on the batch and a batch from memory; the loss is a mean over both."""
        batch = self._prepare_inputs(inputs)
        key = label_key(batch)
        rest = {name: value for name, value in batch.items() if name != key}
        first = (self.state.epoch or 0) < 1
        extended = self.rehearsal.extended(rest, batch[key], first)
        self._weights = extended.weights if self.rehearsal.influence else None
        try:
            joined = {**dict(extended.inputs), key: extended.labels}  # type: ignore[arg-type]
            loss: Tensor = super().training_step(model, joined, None)
        finally:
            self._weights = None
        self.rehearsal.remember()
        return loss

    def compute_loss(self, model: nn.Module, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        """Return the model's own loss, or in a weighed step that of the rehearsal."""
        if self._weights is None:
            return super().compute_loss(model, inputs, *arguments, **keywords)
        key = label_key(inputs)
        outputs = model(**{name: value for name, value in inputs.items() if name != key})
        losses = self.rehearsal.loss_fn(outputs.logits, inputs[key])
        return (self._weights.to(losses) * losses).sum()


class _Memory(TrainerCallback):  # type: ignore[misc]
    """Tells the rehearsal when training begins, and writes it beside each checkpoint."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        optimizer = keywords["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        assert isinstance(inner, torch.optim.Optimizer)
        self.rehearsal.begin(keywords["model"], inner, args.max_grad_norm or None)

    def on_save(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            content = file_format.pack(self.rehearsal.state_dict(), {"kind": "rehearsal"})
            file_format.write(folder / FILE, content)
