"""What stands in for the journal on all ranks but the first: nothing is written."""

from __future__ import annotations

from trainer_backend.protocol import AnyEvent


class NoJournal:
    """Takes everything and keeps nothing."""

    def put(self, event: AnyEvent) -> None:
        """Rank 0 puts the same."""

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Nothing waits."""
        del timeout_s
        return True

    def sync(self, timeout_s: float = 0.0) -> bool:
        """Nothing waits."""
        del timeout_s
        return True

    def place(self, timeout_s: float = 0.0) -> tuple[int, int] | None:
        """It has none."""
        del timeout_s
        return None

    def is_in_place(self) -> bool:
        """It cannot be moved."""
        return True

    def close(self, timeout_s: float = 0.0) -> bool:
        """Nothing waits."""
        del timeout_s
        return True
