"""Wait for something that will be so; fail when it never is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""How long a busy machine may take; only a test that fails waits so long."""


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
