"""Three clocks: one for timestamps, one for deadlines, one for leases.

Times are `int` milliseconds, except in variables whose name ends in `_ns`. Code that also runs in the simulator takes
a `Clock` as an argument; other code calls the functions.
"""

from __future__ import annotations

import time
from typing import Final

# CLOCK_MONOTONIC stops while a machine is suspended, so a lease would last longer than it should. CLOCK_BOOTTIME
# continues, but exists only on Linux.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Return ms since the Unix epoch, for timestamps and for the ages of records. This clock may be set back or
    forward.
    """
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return ms of the monotonic clock, for deadlines and intervals within the lifetime of one process."""
    return time.monotonic_ns() // 1_000_000


def boottime_ms() -> int:
    """Return ms of the boot-time clock, for leases. This clock continues while the machine is suspended."""
    return time.clock_gettime_ns(_BOOTTIME) // 1_000_000


class Clock:
    """The three clocks of this machine as one object, which the simulator replaces by its own.

    Each method repeats the body of the function of the same name, because a call of that function would cost time in
    every request.
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
