"""Pre-vote (Raft thesis 9.6): ask first whether an election could be won, disturb nobody if not.

A voter whose timer ends starts a *round*: it asks all others whether they would vote for it in the
next term, and raises its term only with a majority's consent. A voter consents only when it has
heard of no leader for a minimal election timeout (stickiness) and the asker's log is not behind its
own. An isolated voter thus comes back with the term it left with, and deposes nobody. While a round
is young its question is repeated, with the same number: an answer may take longer than a timer.

`approved` is consent not yet used. It is void as soon as the ground it stood on moves: another
round, a vote given to someone else, another term, a leader heard of.
"""

from __future__ import annotations


class PreVote:
    """One voter's rounds; no network, and times are the caller's."""

    def __init__(self, node_id: int, voter_count: int) -> None:
        self._node_id = node_id
        self._voter_count = voter_count
        self._granted: set[int] = set()
        self._running = False
        self._started_s = 0.0
        self.round = 0
        self.approved = False

    def is_running(self, *, since_s: float) -> bool:
        """Whether a round that began after `since_s` still waits for consent."""
        return self._running and self._started_s > since_s

    def start(self, now_s: float) -> None:
        """Begin the next round; a single voter has won it already."""
        self.round += 1
        self._started_s = now_s
        self._granted = {self._node_id}
        self._running = True
        self.approved = False
        self._count()

    def grant(self, peer_id: int, round_number: int) -> bool:
        """A peer consents; True when that makes the majority."""
        if not self._running or round_number != self.round:
            return False
        self._granted.add(peer_id)
        self._count()
        return self.approved

    def yields_to(self, other: tuple[int, int, int], *, own: tuple[int, int, int]) -> bool:
        """Void this voter's round, if there is one, for that of a better candidate; whether it was.

        Candidates are (last term, last index, node id). Two that ask at the same time would both
        consent and then split the votes, again and again where answers take as long as timers.
        """
        if other <= own or not (self._running or self.approved):
            return False
        self.clear()
        return True

    def use(self) -> bool:
        """Take the consent, if there is one, for one election."""
        approved, self.approved = self.approved, False
        return approved

    def clear(self) -> None:
        """Void round and consent."""
        self._running = False
        self.approved = False

    def _count(self) -> None:
        if len(self._granted) * 2 > self._voter_count:
            self.approved = True
            self._running = False
