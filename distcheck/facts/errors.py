"""distcheck's own failures; what is wrong with a job is never an exception but a finding."""

from __future__ import annotations


class UsageError(Exception):
    """What the user typed or gave cannot be used; the message names the value, the place and the remedy (exit 2)."""


class WriteError(Exception):
    """A report or a job file could not be written (exit 70)."""
