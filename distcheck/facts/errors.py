"""distcheck's own failures; a fault of the job is a finding, never an exception."""

from __future__ import annotations


class UsageError(Exception):
    """Invalid input (exit code 2); the message names the value, the place and the fix."""


class WriteError(Exception):
    """A report or a job file could not be written (exit code 70)."""
