"""A model that keeps learning from new data with a fixed memory, in a user's own code."""

import logging

from metasp.learner.encoder import FrozenEncoder
from metasp.learner.learner import ContinualLearner
from metasp.learner.views import MemoryView

__all__ = ["ContinualLearner", "FrozenEncoder", "MemoryView"]
logging.getLogger("metasp").addHandler(logging.NullHandler())  # silent unless the program says more
