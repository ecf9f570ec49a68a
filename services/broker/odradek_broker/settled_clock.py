"""The wall-clock time by which a broker decides that data has expired and can be deleted.

The ages of records, committed offsets, transactional ids and ledgers are differences of wall-clock times, because this
data outlives the process. A wall clock that is set forward, by mistake or after a machine was moved, makes all of this
data old at once. Topics would be emptied, groups would restart from auto.offset.reset, and a repeated step of a staged
write would be written twice. Therefore a jump forward is ignored until it has lasted for a day, in which an operator
can notice and undo it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_MS: Final = 60_000
"""If the wall clock advances by this much more than the monotonic clock between two readings, it has jumped."""
SETTLING_MS: Final = 24 * 3_600_000


@dataclass(slots=True)
class SettledClock:
    """A wall clock that ignores jumps forward until they are a day old. The first reading is accepted unchecked."""

    _ahead_ms: int | None = None  # how far the wall clock is ahead of the monotonic clock
    _jumped_ms: int | None = None  # monotonic time of the ignored jump; None: no jump is ignored

    def read(self, *, now_ms: int, wall_ms: int) -> int:
        """Return `wall_ms`, less a jump forward that is younger than a day. `now_ms` is the monotonic time."""
        ahead_ms = wall_ms - now_ms
        if self._ahead_ms is None or ahead_ms <= self._ahead_ms + JUMP_MS:
            self._jumped_ms = None
        elif self._jumped_ms is None:
            self._jumped_ms = now_ms
        if self._jumped_ms is None or now_ms - self._jumped_ms >= SETTLING_MS:
            self._ahead_ms, self._jumped_ms = ahead_ms, None
        assert self._ahead_ms is not None
        return now_ms + self._ahead_ms
