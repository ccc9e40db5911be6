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


class RankLostError(GradaccError):
    """Another rank's process ended, or does not answer: no collective can be completed any more."""

    code = "rank-lost"


class RankFailedError(GradaccError):
    """Another rank cannot go on. `rank` is which; `told` is what it says of its error."""

    code = "rank-failed"

    def __init__(self, rank: int, told: object) -> None:
        super().__init__(f"Rank {rank}: {getattr(told, 'reason', told)}")
        self.rank = rank
        self.told = told


class WindowLeft(BaseException):
    """No error: a stop was asked for on some rank, so all leave what they do together; it is undone."""
