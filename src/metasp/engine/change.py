"""A detector of change in the loss of new examples, whose state can be stored as numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from metasp.errors import UserError
from metasp.types import State

KEPT = 2_000  # losses that a detector is made anew from, when it has been told twice as many
RECENT = 10  # losses that say whether a change was a rise, where a detector does not


class Detector(Protocol):
    """What `river.drift` calls a drift detector, such as ADWIN."""

    @property
    def drift_detected(self) -> bool: ...

    def update(self, x: float) -> Any: ...


MakeDetector = Callable[[], Detector]
"""A class of detectors, or a function that makes one."""


class Change:
    """Tells when the loss has risen for good. A fall marks nothing: learning brings it about.

    What a detector holds inside is its own affair, so its state is the losses that it was told
    since it was made: from them another one is made that stands where it stood. After so many of
    them it is made anew from the newer half."""

    def __init__(self, make: MakeDetector) -> None:
        self.make = make
        self.stand_at(())

    def stand_at(self, losses: Sequence[float]) -> None:
        """As after these losses."""
        self.detector, self.losses = self.make(), [float(loss) for loss in losses]
        if not hasattr(self.detector, "update") or not hasattr(self.detector, "drift_detected"):
            raise UserError(
                f"detector returned a {type(self.detector).__name__}: pass a class of drift "
                "detectors, such as river.drift.ADWIN, or a function that makes one."
            )
        for loss in self.losses:
            self.detector.update(loss)

    def state_dict(self) -> State:
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        self.stand_at(state["losses"].tolist() if "losses" in state else ())

    def saw(self, loss: float) -> bool:
        """Note the loss of new examples; whether it has risen for good."""
        before = estimate(self.detector)
        self.detector.update(loss)
        self.losses.append(loss)
        rose = self.detector.drift_detected and self._rose(before)
        if len(self.losses) >= 2 * KEPT:
            self.stand_at(self.losses[KEPT:])
        return bool(rose)

    def _rose(self, before: float | None) -> bool:
        """Whether a change was for the worse."""
        after = estimate(self.detector)
        if before is not None and after is not None:
            return after > before
        older, newer = self.losses[:-RECENT], self.losses[-RECENT:]
        return not older or sum(newer) / len(newer) > sum(older) / len(older)


def estimate(detector: Any) -> float | None:
    """The mean loss of the time that the detector looks at, if it tells."""
    found = getattr(detector, "estimation", None)
    return None if found is None else float(found)
