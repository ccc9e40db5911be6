"""How long the machine has slept: what its wall clock counted while nothing of it ran. No torch."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def asleep_s() -> float:
        """Seconds this machine was suspended since it was started; only differences mean anything.

        A process that is held up between the two readings seems to have slept less, never more.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)

elif sys.platform == "darwin":

    def asleep_s() -> float:
        """The same; there CLOCK_MONOTONIC goes on in a sleep, and CLOCK_UPTIME_RAW stands."""
        return time.clock_gettime(time.CLOCK_MONOTONIC) - time.clock_gettime(time.CLOCK_UPTIME_RAW)

else:

    def asleep_s() -> float:
        """Python tells no clock of Windows that stands in a sleep, so none is known."""
        return 0.0
