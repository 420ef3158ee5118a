"""Rehearsal-based continual learning with example influence."""

__version__ = "0.1.0"
