"""The order of pieces of long work: start-time fair queueing, without I/O.

The next piece belongs to the owner (`shares.owner_of`) whose work has used the least time on the event loop. So an
owner with a hundred connections gets no more time than an owner with one connection.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")
SLICE_S: Final = 0.003
"""The time for which one piece of long work may use the event loop before it waits for its next turn."""


class TurnOrder(Generic[T]):
    """The waiting pieces of all owners, each represented by a ticket. Pieces of one owner run in order of arrival.

    `_used` has the time in seconds that each owner has used. `_clock` is the used time of the owner that was chosen
    last, before its piece ran. An owner that was idle continues at `_clock` if its own used time is lower, so an owner
    cannot save up time by being idle.
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
        """The number of owners whose used time is stored."""
        return len(self._used)

    def wait(self, owner: str, ticket: T) -> None:
        """Add a piece of the owner's work to the waiting pieces. `next` returns the ticket when the piece may run."""
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
        """Charge an owner for a piece that took `seconds`. `next` has already charged one slice of that time."""
        if not self._waiting:
            return
        self._used[owner] = self._used.get(owner, self._clock) + max(0.0, seconds - SLICE_S)
        if len(self._used) > 2 * len(self._waiting) + 64:
            self._used = {
                owner: used
                for owner, used in self._used.items()
                if owner in self._waiting or used > self._clock
            }
