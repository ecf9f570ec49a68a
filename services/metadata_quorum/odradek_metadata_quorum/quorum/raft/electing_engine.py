"""The engine's elections, with the holes of pysyncobj 0.3.17 closed, and its place in the process.

pysyncobj decides when to campaign and who has won. This class stands between it and the messages,
and overrides the private methods whose rules are too weak. The rules it adds:

- *Pre-vote and stickiness* (`pre_vote.py`), votes counted once per (term, voter), and none given by
  a voter that may have forgotten one (`joining.py`).
- *A leader whose connection broke* is not waited for as one that is silent: its process is gone, or
  will be heard again at once. Who hears it still (a majority, if it lives) consents to no election.
- *A vote given counts as hearing a leader*, from when it leaves: the candidate's first heartbeat is
  a write of this voter's disk and a round trip away. Until it has left, this voter does not campaign.
- *A stall of our own is nobody else's silence*: after a long turn of the loop, what came meanwhile
  is read before any deadline is judged; and one such stall in each longest election timeout is
  added to every deadline. No more than one: a voter whose turns are all long would keep a silent
  leader, or its own leadership of nobody, for many times as long as it should.
- *A leader without a majority's answers steps down*; the engine's own rule judges before it reads.

What must not be overridden lightly is written as `super()._SyncObj__...`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pysyncobj import SyncObj, SyncObjConf

from odradek_metadata_quorum.quorum.network import wire
from odradek_metadata_quorum.quorum.network.outbox import Outbox
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.raft.engine import (
    CANDIDATE,
    ENGINE_CLOCK,
    FOLLOWER,
    LEADER,
    BarrierJournal,
    EngineTransport,
    Node,
)
from odradek_metadata_quorum.quorum.raft.loop_turns import LoopTurns
from odradek_metadata_quorum.quorum.raft.pre_vote import PreVote
from odradek_metadata_quorum.quorum.raft.read_index import Confirmed, ReadIndex
from odradek_metadata_quorum.quorum.storage.disk_queue import Fatal
from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier

APPEND_BATCH_BYTES: Final = (1 << 20) + 4096  # above the largest command: it is never cut in pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimers:
    """In seconds, as the engine counts."""

    election_min_s: float
    election_max_s: float
    lost_leader_min_s: float
    lost_leader_max_s: float
    heartbeat_s: float
    fallback_s: float
    tick_s: float


class ElectingEngine(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Elections, and what is known. Not for use by itself: see `RaftNode`."""

    _SyncObj__raftElectionDeadline: float  # the engine's, set here too

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        barrier: WriteBarrier,
        outbox: Outbox,
        timers: RaftTimers,
        clock: Callable[[], float],
        randomness: random.Random,
        fatal: Fatal,
    ) -> None:
        ENGINE_CLOCK.read = clock
        peers = sorted(set(voters) - {node_id})
        self.node_id = node_id
        self.halted = False
        self._peers = {peer_id: Node(peer_id) for peer_id in peers}
        self._barrier = barrier
        self._log = barrier.log
        self._outbox = outbox
        self._timers = timers
        self._random = randomness
        self._fatal = fatal
        self._pre_vote = PreVote(node_id, len(peers) + 1)
        self._read_index = ReadIndex(len(peers) + 1)
        self._read_asked_s = 0.0
        self._votes: set[tuple[int, int]] = set()
        self._heard_s = ENGINE_CLOCK.read()
        self._turns = LoopTurns(
            self._heard_s,
            long_s=timers.tick_s + timers.heartbeat_s,
            forgiven_interval_s=timers.election_max_s,
        )
        self._looked_round_s = 0.0  # when this leader last counted who answers it
        self._vote_leaves = False  # a vote of this term is given, and not on disk yet
        self._lost_leader_s = 0.0  # when the connection to the leader broke
        super().__init__(
            Node(node_id),
            list(self._peers.values()),
            conf=SyncObjConf(
                autoTick=False,
                journalFile=BarrierJournal(barrier),
                appendEntriesUseBatch=True,
                appendEntriesBatchSizeBytes=APPEND_BATCH_BYTES,
                raftMinTimeout=timers.election_min_s,
                raftMaxTimeout=timers.election_max_s,
                appendEntriesPeriod=timers.heartbeat_s,
                leaderFallbackTimeout=math.inf,  # see _step_down_if_alone
                commandsWaitLeader=False,
                dynamicMembershipChange=False,
                useFork=False,
            ),
            nodeClass=Node,
            transport=EngineTransport(self._send_from_engine),
        )
        self._SyncObj__needLoadDumpFile = False

    # What is known.

    @property
    def term(self) -> int:
        """Raft's current term."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied(self) -> int:
        """The last entry applied."""
        return int(self._SyncObj__raftLastApplied)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def is_candidate(self) -> bool:
        """Whether this node campaigns."""
        return bool(self._SyncObj__raftState == CANDIDATE)

    @property
    def leader_id(self) -> int | None:
        """Who leads, as far as this node knows."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    def may_vote(self) -> bool:
        """False while this voter may have forgotten votes."""
        raise NotImplementedError

    def peer_connected(self, peer_id: int) -> None:
        """The network reaches a voter."""
        self._SyncObj__onNodeConnected(self._peers[peer_id])

    def peer_disconnected(self, peer_id: int) -> None:
        """The network lost a voter."""
        self._SyncObj__onNodeDisconnected(self._peers[peer_id])
        if peer_id == self.leader_id:
            self._lost_leader_s = ENGINE_CLOCK.read()
            timers = self._timers
            patience_s = self._random.uniform(timers.lost_leader_min_s, timers.lost_leader_max_s)
            due_s = self._lost_leader_s + patience_s
            if due_s < self._SyncObj__raftElectionDeadline:
                self._SyncObj__raftElectionDeadline = due_s

    def halt(self, reason: str, error: BaseException | None = None) -> None:
        """Something that must not be survived: nothing is sent any more, the process ends."""
        self.halted = True
        self._fatal(reason, error)

    def tell(self, peer_id: int, message: Message) -> None:
        """Send, behind the write barrier."""
        if not self.halted:
            self._outbox.send(peer_id, message)

    # Time.

    def _forgive(self, stall_s: float) -> None:
        """Time in which this process did not run counts for nobody's silence."""
        self._heard_s += stall_s
        self._SyncObj__raftElectionDeadline += stall_s
        for node in self._SyncObj__lastResponseTime:
            self._SyncObj__lastResponseTime[node] += stall_s

    def _step_down_if_alone(self, now_s: float) -> None:
        """No majority answered this leader for `fallback_s`: another one may lead by now."""
        read_until_s = self._turns.read_until_s(now_s)
        answered = 1 + sum(
            answered_s > read_until_s - self._timers.fallback_s
            for answered_s in self._SyncObj__lastResponseTime.values()
        )
        if 2 * answered <= len(self._peers) + 1:
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None

    def _vote_left(self) -> None:
        """The vote given in this term is on disk, and on its way."""
        self._vote_leaves = False
        self._heard_s = ENGINE_CLOCK.read()
        self._SyncObj__raftElectionDeadline = self._heard_s + self._election_timeout_s()

    def _election_timeout_s(self) -> float:
        timers = self._timers
        if self.term == 0 and not any(peer_id < self.node_id for peer_id in self._peers):
            return timers.heartbeat_s  # a new cluster: one voter asks often, the others leave it
        return self._random.uniform(timers.election_min_s, timers.election_max_s)

    def campaign_soon(self) -> None:
        """The timer ends with the next step, and no leader of the past holds this voter back."""
        self._heard_s = ENGINE_CLOCK.read() - self._timers.election_min_s
        if self._election_timeout_s() <= self._timers.heartbeat_s or not self._peers:
            self._SyncObj__raftElectionDeadline = 0.0

    # Reads.

    def confirm_leadership(self, confirmed: Confirmed) -> None:
        """Call `confirmed(True)` once a majority has confirmed that nobody was elected before now.

        With False when this node does not lead, or stops to before that. `step` must follow, soon.
        """
        if self.halted or not self.is_leader:
            confirmed(False)
        else:
            self._read_index.ask(confirmed)

    def _drive_reads(self) -> None:
        """Begin the round that somebody waits for; ask again where answers are late.

        The question is a pre-vote's, for the term that this node leads already: nobody consents, and
        everybody answers with the term it is in. So voters of all versions understand it.
        """
        reads, now_s = self._read_index, ENGINE_CLOCK.read()
        if reads.is_due:
            self._pre_vote.round += 1
            reads.begin(self._pre_vote.round)
            self._read_asked_s = 0.0
        if reads.round is not None and now_s >= self._read_asked_s + self._timers.heartbeat_s:
            self._read_asked_s = now_s
            self._ask_all(self.term, reads.round)

    # Overrides: elections.

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._election_timeout_s()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """The engine asks this exactly when its election timer has ended: the pre-vote's place."""
        if self._turns.read_until_s(ENGINE_CLOCK.read()) < self._SyncObj__raftElectionDeadline:
            return False  # a heartbeat may have come that is not read yet
        if not self.may_vote() or self._vote_leaves:
            self._SyncObj__raftElectionDeadline = ENGINE_CLOCK.read() + self._election_timeout_s()
            return False
        now_s = ENGINE_CLOCK.read()
        if not self._pre_vote.approved and not self._pre_vote.is_running(
            since_s=now_s - self._timers.election_max_s
        ):
            self._pre_vote.start(now_s)
        if self._pre_vote.use():
            self._votes.clear()
            return True
        self._SyncObj__raftElectionDeadline = ENGINE_CLOCK.read() + self._election_timeout_s()
        self._SyncObj__raftLeader = None
        self._ask_all(self.term + 1, self._pre_vote.round)
        return False

    def _ask_all(self, term: int, round_number: int) -> None:
        """Ask every voter for consent to lead `term`; one that is in that term tells so."""
        _, last_index, last_term = self._log.entries[-1]
        for peer_id in self._peers:
            self.tell(
                peer_id,
                {
                    "type": wire.PRE_VOTE,
                    "term": term,
                    "round": round_number,
                    "last_log_index": last_index,
                    "last_log_term": last_term,
                },
            )

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: int | None) -> None:
        assert term >= self.term, (term, self.term)
        if term > self.term or voted_for not in (None, self.node_id):
            self._pre_vote.clear()
        self._vote_leaves = voted_for is not None
        super()._SyncObj__setCurrentTerm(term, voted_for)

    def _follow(self, term: int) -> None:
        """A higher term was seen: be a follower in it, of nobody yet."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    # Messages.

    def _send_from_engine(self, node: Any, message: Message) -> bool:
        self.tell(node.id, message)
        return True

    def _to_engine(self, node: Any, message: Message) -> None:
        self._SyncObj__onMessageReceived(node, message)

    def _on_request_vote(self, node: Any, message: Message) -> None:
        if not self.may_vote():
            return
        self._to_engine(node, message)

    def _on_response_vote(self, node: Any, message: Message) -> None:
        if message["term"] > self.term:
            self._follow(message["term"])
        elif message["term"] == self.term and self._is_first_vote(message["term"], node.id):
            self._to_engine(node, message)

    def _is_first_vote(self, term: int, peer_id: int) -> bool:
        if (term, peer_id) in self._votes:
            return False
        self._votes.add((term, peer_id))
        return True

    def _on_pre_vote(self, node: Any, message: Message) -> None:
        if not self.may_vote() and message["term"] <= self.term:
            return  # a leader's question, and this voter may have forgotten that it elected another
        _, last_index, last_term = self._log.entries[-1]
        granted = (
            self.may_vote()
            and not self._hears_leader()
            and message["term"] > self.term
            and (message["last_log_term"], message["last_log_index"]) >= (last_term, last_index)
        )
        if granted and self._pre_vote.yields_to(
            (message["last_log_term"], message["last_log_index"], node.id),
            own=(last_term, last_index, self.node_id),
        ):
            self._SyncObj__raftElectionDeadline = ENGINE_CLOCK.read() + self._election_timeout_s()
        self.tell(
            node.id,
            {
                "type": wire.PRE_VOTE_REPLY,
                "term": self.term,
                "round": message["round"],
                "granted": granted,
            },
        )

    def _hears_leader(self) -> bool:
        """Stickiness: whether there is a leader worth keeping."""
        if self.is_leader or self._vote_leaves:
            return True
        heard_s_ago = self._turns.read_until_s(ENGINE_CLOCK.read()) - self._heard_s
        return self._lost_leader_s <= self._heard_s and heard_s_ago < self._timers.election_min_s

    def _on_pre_vote_reply(self, node: Any, message: Message) -> None:
        if message["term"] > self.term:
            self._follow(message["term"])
        elif self.is_leader:
            if message["term"] == self.term:
                self._read_index.agree(node.id, message["round"])
        elif message["granted"] and self._pre_vote.grant(node.id, message["round"]):
            self._SyncObj__raftElectionDeadline = 0.0

    def _on_timeout_now(self, node: Any, message: Message) -> None:
        """The leader hands over: campaign at once, without asking whether one may."""
        if message["term"] == self.term and node.id == self.leader_id and self.may_vote():
            self._pre_vote.approved = True
            self._SyncObj__raftElectionDeadline = 0.0
