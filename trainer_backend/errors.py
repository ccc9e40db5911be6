"""The one family of errors that people are meant to read."""

from __future__ import annotations


class GradaccError(Exception):
    """A slip or a state that a sentence explains: what is wrong, and what to do about it.

    `str(error)` is that sentence. `exit_code` is what the command line returns for it:
    2 for bad usage or configuration, 1 for a run that failed.
    """

    exit_code = 1


class UsageError(GradaccError):
    """The user's input is refused; nothing was started and nothing was written."""

    exit_code = 2


class RunDirectoryError(UsageError):
    """A run directory is damaged, half copied, locked or read-only."""
