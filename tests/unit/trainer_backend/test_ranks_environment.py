"""What a launcher sets, and what something else may have set."""

from __future__ import annotations

import pytest

from trainer_backend.errors import UsageError
from trainer_backend.torchrun import place_of


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "two", " 2", "1e3", ""])
def test_a_size_that_no_launcher_sets_is_a_sentence(text: str) -> None:
    """Beside a rank; without one it is one process."""
    with pytest.raises(UsageError, match="WORLD_SIZE is no size"):
        place_of({"WORLD_SIZE": text, "RANK": "0"})
    assert place_of({"WORLD_SIZE": text}) is None


def test_a_world_without_ranks_is_a_sentence() -> None:
    """Two processes that do not know which they are would be two unrelated runs."""
    with pytest.raises(UsageError):
        place_of({"WORLD_SIZE": "2"})
