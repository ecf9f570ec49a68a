"""Whether this leader still led when a read arrived (read index, Raft thesis 6.4).

A leader that was cut off does not know that another leads by now, and commits what this one lacks.
So a response that no committed entry of its own vouches for waits for a *round*: the leader asks all
voters for their term, and the responses of a majority, itself included, that still is in its term
prove that nobody was elected before the round began. What its state was then was the newest.

All reads that arrive while a round is under way wait for the next one, together: each is confirmed by a
round that began after it arrived. A round whose responses are late is asked again, under the same number.
"""

from __future__ import annotations

from collections.abc import Callable

Confirmed = Callable[[bool], None]


class ReadIndex:
    """The rounds of one leader's term; no clock, no network."""

    def __init__(self, voter_count: int) -> None:
        self._voter_count = voter_count
        self._waiting: list[Confirmed] = []
        self._running: list[Confirmed] = []
        self._agreed: set[int] = set()
        self.round: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether a read waits for a round that has not begun, and none is under way."""
        return self.round is None and bool(self._waiting)

    def ask(self, confirmed: Confirmed) -> None:
        """Call `confirmed` once: with True when a round that begins after this confirmed the
        leadership, with False when the leadership ended before."""
        self._waiting.append(confirmed)

    def begin(self, round_number: int) -> None:
        """Let this round confirm all reads that wait."""
        assert self.is_due, self.round
        self._running, self._waiting = self._waiting, []
        self._agreed.clear()
        self.round = round_number
        self._conclude()

    def agree(self, peer_id: int, round_number: int) -> None:
        """A voter responded to the round from within the leader's term."""
        if round_number == self.round:
            self._agreed.add(peer_id)
            self._conclude()

    def end(self) -> None:
        """Refuse all reads: the leadership is over."""
        refused = self._running + self._waiting
        self._running, self._waiting, self.round = [], [], None
        for confirmed in refused:
            confirmed(False)

    def _conclude(self) -> None:
        if 2 * (1 + len(self._agreed)) <= self._voter_count:
            return
        reads, self._running, self.round = self._running, [], None
        for confirmed in reads:
            confirmed(True)
