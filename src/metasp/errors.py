"""The one exception for a mistake that the user can correct."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class UserError(ValueError):
    """Something the caller got wrong; the message is one sentence with the remedy."""


class CorruptPicture(UserError):
    """A picture that cannot be decoded, as one sentence that names it."""


@contextlib.contextmanager
def or_user_error(what: str, remedy: str = "") -> Iterator[None]:
    """What the system refuses (a full disk, no permission) as one sentence: what could not be done,
    the system's word on why, and the remedy."""
    try:
        yield
    except OSError as error:
        end = f"; {remedy}" if remedy else "."
        raise UserError(f"{what}: {error.strerror or error}{end}") from error


class Diverged(UserError):
    """Training left the finite numbers; `event` says which one and when."""

    def __init__(self, event: str) -> None:
        super().__init__(f"{event}: try a smaller --lr; the last checkpoint before it is kept.")
        self.event = event


BATCHNORM_NEEDS_TWO = (
    "cannot learn from a batch of one example whose values have shrunk to a point: give batch_size "
    "and tasks of 2 examples or more, larger pictures, or a network without it."
)


LISTED = 60  # names that an error lists


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest one that is."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = ", ".join(names[:LISTED]) + more
    return UserError(f"unknown {kind} {name!r}: {hint}known are {listed}.")


def told_in_python(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose mistakes name keywords where the command line has flags."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            words = without_flags(str(error))
            if words == str(error):
                raise
            raise UserError(words) from error

    return wrapped


def without_flags(sentence: str) -> str:
    """The sentence with ``--label-column`` as the keyword `label_column`; commands in it, which
    stand between backquotes, stay."""
    parts = sentence.split("`")
    parts[::2] = [
        re.sub(r"--([a-z][a-z-]*)", lambda flag: f"`{flag[1].replace('-', '_')}`", part)
        for part in parts[::2]
    ]
    return "`".join(parts)
