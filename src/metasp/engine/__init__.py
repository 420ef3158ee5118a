"""Training and testing over a stream of tasks."""

from metasp.engine.build import build_trainer
from metasp.engine.trainer import Diverged, Trainer

__all__ = ["Diverged", "Trainer", "build_trainer"]
