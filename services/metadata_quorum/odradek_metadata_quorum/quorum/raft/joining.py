"""When a voter with an empty directory may begin to vote.

An empty voter is either new, or was wiped: then it may have voted in some term *t*, and may have
acknowledged entries that are committed only thanks to it. If it voted again in *t*, or for a
candidate that lacks those entries, a term could have two leaders, or a commit could be undone. It
cannot tell which it is, so it finds out, and until then it stores and acknowledges entries but
neither votes nor consents nor campaigns:

- *The cluster is new*: every other voter answered that its term is 0 and its log is empty. Nobody
  has ever voted or stored anything, this one included. All must answer, not a majority: with one of
  three wiped, one never started and one down, a majority of empty voters would found a new cluster
  beside the old one's last copy.
- *It has caught up*: every other voter told its term; a candidate raises its own term, durably,
  before it asks for a vote, so the highest of these answers (the *floor*) is at or above every term
  this voter may have voted in. After that, a leader showed it a commit index of its own term, and
  this voter's log reaches there: what it had once helped to commit is in its log again. It then
  refuses every vote up to the floor.

The price of asking all: a wiped voter does not vote while another one is gone for good. Of five
voters with one dead and one wiped three are left that may vote: a majority, which bears no further
loss until the dead one is replaced, or answers once more.

This assumes that a minority of voters is wiped at a time; Raft has no answer beyond that.
An acknowledgement of the former life cannot count after this: a new connection from a voter ends
the old one before its first frame is read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Answer:
    term: int
    last_index: int


class Joining:
    """One empty voter's way to its first vote; no clock, no network."""

    def __init__(self, other_voters: frozenset[int], *, round_number: int, genesis_index: int):
        self._others = other_voters
        self._genesis_index = genesis_index
        self._answers: dict[int, _Answer] = {}
        self.round = round_number

    @property
    def missing(self) -> list[int]:
        """Voters that have not answered yet."""
        return sorted(self._others - self._answers.keys())

    def answer(self, peer_id: int, round_number: int, term: int, last_index: int) -> None:
        """A voter tells its term and its log's end. The first answer of being empty is kept.

        That a voter was empty after this one began to ask proves that nothing had ever happened,
        whatever it does next; a term is the higher the later it is told, and then the safer.
        """
        if round_number != self.round or peer_id not in self._others:
            return
        before = self._answers.get(peer_id)
        if before is None or not self._is_empty(before):
            self._answers[peer_id] = _Answer(term, last_index)

    @property
    def cluster_is_new(self) -> bool:
        """Whether every voter is as empty as this one."""
        return not self.missing and all(map(self._is_empty, self._answers.values()))

    @property
    def floor(self) -> int | None:
        """No vote at or below this term; None until every voter has answered."""
        if self.missing:
            return None
        return max((answer.term for answer in self._answers.values()), default=0)

    def _is_empty(self, answer: _Answer) -> bool:
        return answer.term == 0 and answer.last_index == self._genesis_index
