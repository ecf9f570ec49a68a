"""Three clocks, each for its purpose.

Inside a process, time is `int` milliseconds unless a name says ns. Code that a simulator runs is given a `Clock`;
other code calls the functions.
"""

from __future__ import annotations

import time
from typing import Final

# CLOCK_MONOTONIC stops while a machine is suspended, so a lease would last longer than it should; CLOCK_BOOTTIME
# continues. Only Linux has this clock.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Return ms since the Unix epoch, for ages and for timestamps of records. This clock may jump."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return ms of the monotonic clock, for deadlines and intervals within the lifetime of one process."""
    return time.monotonic_ns() // 1_000_000


def boottime_ms() -> int:
    """Return ms of the boot-time clock, for leases. This clock continues while the machine is suspended."""
    return time.clock_gettime_ns(_BOOTTIME) // 1_000_000


class Clock:
    """The three clocks of this machine as one value, so that a simulator can pass another one.

    Its methods repeat the bodies of the functions instead of calling them, because each request reads clocks often.
    """

    def wall_ms(self) -> int:
        """Return ms since the Unix epoch, as the function `wall_ms` does."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return ms of the monotonic clock, as the function `monotonic_ms` does."""
        return time.monotonic_ns() // 1_000_000

    def boottime_ms(self) -> int:
        """Return ms of the boot-time clock, as the function `boottime_ms` does."""
        return time.clock_gettime_ns(_BOOTTIME) // 1_000_000


SYSTEM_CLOCK: Final = Clock()
