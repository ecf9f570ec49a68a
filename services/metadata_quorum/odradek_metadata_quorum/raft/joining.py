"""Rules for when a voter with an empty directory may begin to vote.

An empty voter is either new, or was wiped: then it may have voted in some term *t*, and may have acknowledged entries
that are committed only because it did. If it voted again in *t*, or for a candidate that lacks those entries, a term
could have two leaders, or a commit could be undone. It cannot know which of these it is, so it asks the other voters.
Until one of the following is known it stores and acknowledges entries, but neither votes nor consents nor campaigns:

- *The cluster is new*: every other voter responded that its term is 0 and its log is empty. Nobody
  has ever voted or stored anything, this one included. All must respond, not a majority: with one of
  three wiped, one never started and one down, a majority of empty voters would found a new cluster
  beside the old one's last copy.
- *It has caught up*: every other voter reported its term; a candidate raises its own term, durably,
  before it asks for a vote, so the highest of these terms (the *floor*) is at or above every term this voter may have
  voted in. After that, a leader sent it a commit index of its own term, and this voter's log reaches there: all
  entries that it once helped to commit are in its log again. It then refuses every vote up to the floor.

Asking all voters has a price: a wiped voter does not vote while another one is lost for good. If one of five voters is
dead and one is wiped, three may vote. They are a majority, but tolerate no further failure until the dead voter is
replaced or responds again.

This assumes that a minority of voters is wiped at a time; Raft has no answer beyond that.
An acknowledgement from before the wipe cannot count after the wiped voter has asked: a new connection from a voter
ends the old one before the first frame of the new one is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.elections import Elections
from odradek_metadata_quorum.raft.engine import Engine
from odradek_metadata_quorum.raft.shell import RaftEvents
from odradek_metadata_quorum.storage.write_ahead_log import GENESIS_INDEX

JOIN_QUERY_INTERVAL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _LogEnd:
    term: int
    last_index: int


class JoinRound:
    """The responses of the other voters to the questions of one empty voter. It has no clock and no network."""

    def __init__(self, other_voters: frozenset[int], *, round_number: int, genesis_index: int):
        self._others = other_voters
        self._genesis_index = genesis_index
        self._responses: dict[int, _LogEnd] = {}
        self.number = round_number

    @property
    def missing(self) -> list[int]:
        """Voters that have not responded yet."""
        return sorted(self._others - self._responses.keys())

    def respond(self, peer_id: int, round_number: int, term: int, last_index: int) -> None:
        """Record a voter's report of its term and log end. A report that it is empty is never replaced.

        If a voter was empty after this voter began to ask, the cluster had done nothing before, whatever that voter
        does afterwards. If a voter reports several terms, the last one counts, because it is the highest and so the
        safest.
        """
        if round_number != self.number or peer_id not in self._others:
            return
        before = self._responses.get(peer_id)
        if before is None or not self._is_empty(before):
            self._responses[peer_id] = _LogEnd(term, last_index)

    @property
    def cluster_is_new(self) -> bool:
        """Whether every other voter has reported that its term is 0 and its log is empty."""
        return not self.missing and all(map(self._is_empty, self._responses.values()))

    @property
    def floor(self) -> int | None:
        """The highest term in which this voter must not vote; None until every voter has responded."""
        if self.missing:
            return None
        return max((response.term for response in self._responses.values()), default=0)

    def _is_empty(self, log_end: _LogEnd) -> bool:
        return log_end.term == 0 and log_end.last_index == self._genesis_index


class Joining:
    """Decides when an empty voter may vote for the first time, and responds to the questions of other
    empty voters.
    """

    def __init__(
        self, engine: Engine, elections: Elections, *, round_number: int, events: RaftEvents
    ) -> None:
        self._engine = engine
        self._elections = elections
        self._events = events
        self._round = JoinRound(
            frozenset(engine.peer_ids), round_number=round_number, genesis_index=GENESIS_INDEX
        )
        self._query_s = 0.0
        self._needed: int | None = None  # joining waits until this index is durable
        self.announced = False
        self._rounds_seen: dict[int, int] = {}  # the round of each voter that was seen joining

    @property
    def missing(self) -> list[int]:
        """Voters whose responses this voter needs before it may vote."""
        return self._round.missing

    def step(self) -> None:
        """Ask the other voters if a question is due, or report that this voter has joined."""
        if self._elections.may_vote:
            return
        if self._needed is not None:
            if self._engine.barrier.durable >= self._needed and not self.announced:
                self.announced = True
                self._events.joined()
            return
        if self._round.cluster_is_new and self._engine.term == 0:
            self._join(0)
            return
        now_s = self._engine.now_s()
        if now_s >= self._query_s:
            self._query_s = now_s + JOIN_QUERY_INTERVAL_S
            for peer_id in self._engine.peer_ids:
                self._engine.tell(peer_id, {"type": wire.JOIN_QUERY, "round": self._round.number})

    def peer_connected(self) -> None:
        """Ask a voter at once, because it has become reachable and may not have responded yet."""
        self._query_s = 0.0

    def on_join_query(self, peer_id: int, message: Message) -> None:
        """Respond to an empty voter that asks for this voter's term and log end."""
        engine = self._engine
        if self._rounds_seen.get(peer_id) != message["round"]:
            # The voter may have lost entries that it had acknowledged, so its acknowledgements no longer count for
            # commits.
            self._rounds_seen[peer_id] = message["round"]
            engine.set_match_index(peer_id, 0)
        engine.tell(
            peer_id,
            {
                "type": wire.JOIN_REPLY,
                "round": message["round"],
                "term": engine.term,
                "last_log_index": engine.log.last_index,
            },
        )

    def on_join_reply(self, peer_id: int, message: Message) -> None:
        """Handle a voter's response to the question of this voter."""
        if not self._elections.may_vote:
            self._round.respond(
                peer_id, message["round"], message["term"], message["last_log_index"]
            )

    def after_append(self, leader_id: int, leader_commit: int) -> None:
        """Join if the log now contains all entries up to the commit index that the leader of this term sent."""
        engine = self._engine
        if self._elections.may_vote or self._needed is not None or engine.halted:
            return
        floor = self._round.floor
        caught_up = (
            engine.leader_id == leader_id
            and engine.commit_index >= leader_commit
            and engine.log.term_at(leader_commit) == engine.term
        )
        if floor is not None and caught_up:
            self._join(floor)

    def _join(self, floor: int) -> None:
        """Allow this voter to vote in terms above `floor`, once the floor is durable."""
        engine = self._engine
        if engine.term > 0 or floor > 0:
            # This voter does not vote in its present term, because it may have voted in it and forgotten that.
            if floor > engine.term:
                engine.follow_term(floor)
            if engine.vote is None:
                engine.set_term(engine.term, engine.node_id)
        self._needed = engine.barrier.noted
        self._events.wake(0.0)

    def confirm_joined(self) -> None:
        """Complete the join, because the lowest term for votes and the directory's `joined` are durable."""
        self._elections.may_vote = True
        if self._engine.term == 0:
            self._elections.campaign_soon()
        self._events.wake(0.0)
