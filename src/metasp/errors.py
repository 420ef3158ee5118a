"""The one exception for a mistake that the user can correct."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the caller got wrong; the message is one sentence with the remedy."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest one that is."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {name!r}: {hint}known are {', '.join(names)}.")
