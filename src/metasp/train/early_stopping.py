"""When a phase of a task has learned enough: by the loss on examples that are held out."""

import math

from torch import nn

from metasp.stateful import Stateful
from metasp.types import State

PATIENCE = 3


class Stopping(Stateful):
    """The weights after the epoch of a phase whose loss on held-out examples was lowest, and how
    many epochs have passed since. Each phase begins anew: epochs with rehearsal learn something
    else than those before them, at the price of the new examples' loss."""

    stored = ("loss", "epoch", "waited", "weights")

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.reset()

    def reset(self) -> None:
        """Forget the phase that is over."""
        self.loss, self.epoch, self.waited = math.inf, 0, 0
        self.weights: State = {}

    @property
    def over(self) -> bool:
        """Whether the phase has waited long enough for a lower loss."""
        return self.waited >= self.patience

    def look(self, model: nn.Module, loss: float, epoch: int) -> bool:
        """Note the loss after an epoch; whether it is the lowest so far."""
        lowest = loss < self.loss
        if lowest:
            self.loss, self.epoch, self.waited = loss, epoch, 0
            self.weights = {key: t.detach().clone() for key, t in model.state_dict().items()}
        else:
            self.waited += 1
        return lowest

    def keep(self, model: nn.Module) -> None:
        """Give the model the best weights back."""
        if self.weights and self.waited:  # else it has them
            model.load_state_dict(self.weights)
