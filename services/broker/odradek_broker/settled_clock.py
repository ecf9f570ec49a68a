"""The wall clock by which a broker decides that something is old enough to be deleted for good.

Ages of records, committed offsets, transactional ids and ledgers are differences of wall-clock times, because they
outlive the process. A wall clock that is set forward, by mistake or after a machine was moved, makes all of them old at
once: topics would be emptied, groups would begin at their reset policy, and a repeated step of a staged write would be
written twice. So a jump forward counts only when it has lasted for a day, in which it can be noticed and undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_MS: Final = 60_000
"""A wall clock that gains more than this on the monotonic clock between two readings has jumped."""
SETTLING_MS: Final = 24 * 3_600_000


@dataclass(slots=True)
class SettledClock:
    """The wall clock without jumps forward that are younger than a day. The first reading is taken as it is."""

    _ahead_ms: int | None = None  # how far the wall clock is ahead of the monotonic clock
    _jumped_ms: int | None = (
        None  # time of the jump that does not count yet, on the monotonic clock
    )

    def read(self, *, now_ms: int, wall_ms: int) -> int:
        """Return the wall-clock time that counts. `now_ms` is the time of the monotonic clock."""
        ahead_ms = wall_ms - now_ms
        if self._ahead_ms is None or ahead_ms <= self._ahead_ms + JUMP_MS:
            self._jumped_ms = None
        elif self._jumped_ms is None:
            self._jumped_ms = now_ms
        if self._jumped_ms is None or now_ms - self._jumped_ms >= SETTLING_MS:
            self._ahead_ms, self._jumped_ms = ahead_ms, None
        assert self._ahead_ms is not None
        return now_ms + self._ahead_ms
