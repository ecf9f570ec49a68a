"""The rules by which a voter with an empty data directory begins to vote (joins).

An empty voter is either new or was wiped. A wiped voter may have voted in some term *t*, and may have acknowledged
entries that are committed only because of its acknowledgement. If it voted again in *t*, or for a candidate that lacks
these entries, a term could have two leaders, or a commit could be undone. An empty voter cannot know whether it was
wiped, so it asks the other voters. It stores and acknowledges entries at once. But it does not vote, does not consent
to pre-votes and does not start elections until one of the following facts is certain:

- *The cluster is new*: every other voter has responded that its term is 0 and its log is empty. So no voter, including
  this one, has ever voted or stored an entry. A majority of responses is not enough. Suppose one of three voters was
  wiped, one has never started, and one is down. Then a majority of empty voters would begin a new cluster, although the
  voter that is down has the last copy of the old log.
- *This voter has caught up*: every other voter has reported its term. A candidate raises its own term durably before it
  requests votes, so the highest reported term (the *floor*) is at or above every term in which this voter may have
  voted. Then a leader has sent a commit index of its own term, and this voter's log has all entries up to it. So all
  entries that this voter may have helped to commit are in its log again. It refuses to vote in all terms up to the
  floor.

The disadvantage of requiring all responses is that a wiped voter does not vote while another voter is lost for good. If
one of five voters is dead and one is wiped, the other three can vote. They are a majority, but tolerate no further
failure until the dead voter is replaced or responds again.

These rules assume that only a minority of voters is wiped at a time; otherwise Raft cannot be safe. When the first
JOIN_QUERY of a wiped voter arrives, a leader resets the match index of this voter to 0. An acknowledgement that the
voter sent before it was wiped cannot arrive after that, because a new connection from a voter closes the old one before
the first message of the new connection is read.
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
    """The responses of the other voters to the JOIN_QUERY messages of one empty voter, without clock and network."""

    def __init__(self, other_voters: frozenset[int], *, round_number: int, genesis_index: int):
        self._others = other_voters
        self._genesis_index = genesis_index
        self._responses: dict[int, _LogEnd] = {}
        self.number = round_number

    @property
    def missing(self) -> list[int]:
        """The other voters that have not responded yet."""
        return sorted(self._others - self._responses.keys())

    def respond(self, peer_id: int, round_number: int, term: int, last_index: int) -> None:
        """Record the term and the last log index that a voter reported. Responses to another round are ignored.

        A report of term 0 and an empty log is never replaced: it proves that the other voter had neither voted nor
        stored an entry when this voter began to ask, whatever happens later. Of several other reports the last one
        counts, because it has the highest term, and the highest floor is the safest.
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
        """The highest term in which this voter must not vote; None until every other voter has responded."""
        if self.missing:
            return None
        return max((response.term for response in self._responses.values()), default=0)

    def _is_empty(self, log_end: _LogEnd) -> bool:
        return log_end.term == 0 and log_end.last_index == self._genesis_index


class Joining:
    """Decides when an empty voter may vote for the first time, and responds to the JOIN_QUERY of other empty voters."""

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
        # Set when this voter may join: the value of the write barrier's `durable` at which it reports that it joined.
        self._needed: int | None = None
        self.announced = False
        # For each voter that has sent JOIN_QUERY to this one: the number of its last round.
        self._rounds_seen: dict[int, int] = {}

    @property
    def missing(self) -> list[int]:
        """The voters that must respond before this voter may vote."""
        return self._round.missing

    def step(self) -> None:
        """Do what is due: ask the other voters, or report to the owner that this voter may vote."""
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
        """Ask all voters again at the next step, because a voter has become reachable that may not have
        responded yet.
        """
        self._query_s = 0.0

    def on_join_query(self, peer_id: int, message: Message) -> None:
        """Respond to an empty voter with this voter's term and last log index."""
        engine = self._engine
        if self._rounds_seen.get(peer_id) != message["round"]:
            # The empty voter may have lost entries that it acknowledged. So its earlier acknowledgements no longer
            # count for commits.
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
        """Handle another voter's response to JOIN_QUERY."""
        if not self._elections.may_vote:
            self._round.respond(
                peer_id, message["round"], message["term"], message["last_log_index"]
            )

    def after_append(self, leader_id: int, leader_commit: int) -> None:
        """Join if this voter has caught up: its log has all entries up to the commit index that the leader sent, and
        the last of them has the present term.
        """
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
        """Make durable that this voter does not vote in terms up to `floor`. When that is on disk, `step` reports that
        the voter may join.
        """
        engine = self._engine
        if engine.term > 0 or floor > 0:
            # This voter must not vote in its present term, because it may have voted in this term before it was wiped.
            # Therefore it stores a vote for itself.
            if floor > engine.term:
                engine.follow_term(floor)
            if engine.vote is None:
                engine.set_term(engine.term, engine.node_id)
        self._needed = engine.barrier.noted
        self._events.wake(0.0)

    def confirm_joined(self) -> None:
        """Begin to vote. The owner calls this when `joined` in the identity file is durable."""
        self._elections.may_vote = True
        if self._engine.term == 0:
            self._elections.campaign_soon()
        self._events.wake(0.0)
