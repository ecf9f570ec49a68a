"""The order of pieces of long work: start-time fair queueing, without I/O.

The next piece belongs to the owner (`shares.owner_of`) whose work took the least loop time, so an
owner with a hundred connections gets as much as one with a single connection.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")
SLICE_S: Final = 0.003
"""The length of a piece of long work on the loop."""


class TurnOrder(Generic[T]):
    """The waiting pieces of all owners. Pieces of one owner run in the order in which they came.

    `_used` is each waiting owner's loop time, on a clock that advances with the owner that is
    served: an owner that comes back starts at that clock, so idle time is not saved up.
    """

    __slots__ = ("_clock", "_heap", "_used", "_waiting")

    def __init__(self) -> None:
        self._clock = 0.0
        self._used: dict[str, float] = {}
        self._waiting: dict[str, deque[T]] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def owners(self) -> int:
        """The number of owners whose loop time is remembered."""
        return len(self._used)

    def wait(self, owner: str, ticket: T) -> None:
        """Add a piece of the owner's work to the waiting pieces."""
        line = self._waiting.get(owner)
        if line is None:
            line = self._waiting[owner] = deque()
            used = self._used[owner] = max(self._used.get(owner, 0.0), self._clock)
            heappush(self._heap, (used, owner))
        line.append(ticket)

    def next(self) -> T | None:
        """Return the ticket of the piece that runs next; None if no piece waits."""
        if not self._heap:
            return None
        used, owner = heappop(self._heap)
        current = self._used[owner]
        if current > used:  # the owner used more time since it was queued: queue it again
            heappush(self._heap, (current, owner))
            return self.next()
        self._clock = used
        line = self._waiting[owner]
        ticket = line.popleft()
        # One slice is charged in advance, so that other owners come first even before this piece has ended.
        self._used[owner] = used + SLICE_S
        if line:
            heappush(self._heap, (used + SLICE_S, owner))
        else:
            del self._waiting[owner]
            if not self._waiting:  # no owner waits, so past use no longer matters
                self._used.clear()
        return ticket

    def spent(self, owner: str, seconds: float) -> None:
        """Count the time that an owner's piece took. One slice of it was already counted when the piece began."""
        if not self._waiting:
            return
        self._used[owner] = self._used.get(owner, self._clock) + max(0.0, seconds - SLICE_S)
        if len(self._used) > 2 * len(self._waiting) + 64:
            self._used = {
                owner: used
                for owner, used in self._used.items()
                if owner in self._waiting or used > self._clock
            }
