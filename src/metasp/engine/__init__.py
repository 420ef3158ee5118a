"""Training and testing over a stream of tasks."""

from metasp.engine.from_spec import build_trainer
from metasp.engine.trainer import Diverged, Trainer

__all__ = ["Diverged", "Trainer", "build_trainer"]
