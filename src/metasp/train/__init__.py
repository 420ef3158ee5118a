"""Training and testing over a stream of tasks."""

from typing import TYPE_CHECKING

from metasp.errors import Diverged
from metasp.lazy import lazily

if TYPE_CHECKING:
    from metasp.train.from_spec import build_trainer
    from metasp.train.trainer import Trainer

LATER = {"Trainer": "trainer", "build_trainer": "from_spec"}
__getattr__ = lazily(__name__, LATER)

__all__ = ["Diverged", "Trainer", "build_trainer"]
