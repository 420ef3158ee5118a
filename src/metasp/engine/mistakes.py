"""What can go wrong in training, in words."""

from metasp.errors import UserError


class Diverged(UserError):
    """Training left the finite numbers; `event` says which one and when."""

    def __init__(self, event: str) -> None:
        super().__init__(f"{event}: try a smaller --lr; the last checkpoint before it is kept.")
        self.event = event


BATCHNORM_NEEDS_TWO = (
    "cannot learn from a batch of one example whose values have shrunk to a point: give batch_size "
    "and tasks of 2 examples or more, larger pictures, or a network without it."
)
