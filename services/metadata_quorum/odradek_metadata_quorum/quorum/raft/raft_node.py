"""One voter: the hardened engine with a state machine, snapshots and proposals. No I/O of its own.

    receive(peer, message) ---+                       +--> outbox --(write barrier)--> network
    propose(payload, epoch) --+--> step() -- engine --+--> barrier.start_write() -----> disk
    a write became durable ---+                       +--> apply --> events.applied, active, ...

`step` is the only place where the engine ticks; whoever calls `receive` or `propose` makes sure that
it follows soon (`events.wake`). Everything of one step leaves in one write and one message a peer.

The life of an entry: *noted* in memory and in the log's buffer, *durable* when the barrier says so,
*sent* then, *committed* when a majority acknowledged it in this term, *applied* in order. Applied
is never above durable: a single voter thus waits for its own disk, and a state snapshot never holds
what this node's log does not.

The life of a leadership: elected; the no-op of its term committed and applied: *active*, proposals
are taken; ended by a higher term or by silence: everything pending fails as unknown, at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from odradek_metadata_quorum.quorum.network import wire
from odradek_metadata_quorum.quorum.network.outbox import Outbox
from odradek_metadata_quorum.quorum.network.wire import Message
from odradek_metadata_quorum.quorum.raft.electing_engine import RaftTimers
from odradek_metadata_quorum.quorum.raft.engine import (
    COMMAND_REGULAR,
    ENGINE_CLOCK,
    FOLLOWER,
    LEADER,
)
from odradek_metadata_quorum.quorum.raft.joining import Joining
from odradek_metadata_quorum.quorum.raft.replicating_engine import (
    RaftEvents,
    RaftLimits,
    ReplicatingEngine,
)
from odradek_metadata_quorum.quorum.state_machine import StateMachine
from odradek_metadata_quorum.quorum.storage.disk_queue import DiskQueue, Fatal
from odradek_metadata_quorum.quorum.storage.log_recovery import Entry
from odradek_metadata_quorum.quorum.storage.snapshot_store import SnapshotStore
from odradek_metadata_quorum.quorum.storage.write_ahead_log import GENESIS_INDEX
from odradek_metadata_quorum.quorum.storage.write_barrier import WriteBarrier

COMMIT_NOTICE_S: Final = 0.002  # followers learn of a commit with the next entries, or after this
JOIN_QUERY_INTERVAL_S: Final = 0.2


class RaftNode(ReplicatingEngine):
    """See the module."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Iterable[int],
        joined: bool,
        barrier: WriteBarrier,
        outbox: Outbox,
        queued_bytes: Callable[[int], int],
        snapshots: SnapshotStore,
        log_queue: DiskQueue,
        snapshot_queue: DiskQueue,
        state_machine: StateMachine,
        timers: RaftTimers,
        limits: RaftLimits,
        clock: Callable[[], float],
        randomness: random.Random,
        events: RaftEvents,
        fatal: Fatal,
    ) -> None:
        """See `ReplicatingEngine`; `joined` is what the directory's identity says."""
        self._joined = joined
        super().__init__(
            node_id=node_id,
            voters=voters,
            barrier=barrier,
            outbox=outbox,
            queued_bytes=queued_bytes,
            snapshots=snapshots,
            log_queue=log_queue,
            snapshot_queue=snapshot_queue,
            state_machine=state_machine,
            timers=timers,
            limits=limits,
            clock=clock,
            randomness=randomness,
            events=events,
            fatal=fatal,
        )
        self._join_query_s = 0.0
        self._join_announced = False
        self._join_barrier: int | None = None  # joining waits for this to be durable
        self._join_rounds: dict[int, int] = {}  # of the voters that were seen joining
        if not self._peers:
            self.campaign_soon()
        self.joining = Joining(
            frozenset(self._peers),
            round_number=randomness.getrandbits(32),
            genesis_index=GENESIS_INDEX,
        )

    def may_vote(self) -> bool:
        return self._joined

    # The step.

    def step(self) -> None:
        """Let the engine tick; send what is due; start the write of what was noted."""
        if self.halted:
            return
        now_s = ENGINE_CLOCK.read()
        if stall_s := self._turns.step(now_s):
            self._forgive(stall_s)
        if self.is_leader and now_s >= self._looked_round_s + self._timers.tick_s:
            self._looked_round_s = now_s
            self._step_down_if_alone(now_s)
        if not self._joined:
            self._drive_joining()
        self._onTick(0.0)
        if self.halted:
            return
        if self.is_leader:
            self._drive_reads()
            self._tell_peers()
        self._barrier.start_write()

    def durable_moved(self) -> None:
        """The barrier let something through."""
        if not self.halted:
            self._outbox.flush()
            if self._vote_leaves and self._barrier.is_vote_durable:
                self._vote_left()
            self._events.wake(0.0)

    def _tell_peers(self) -> None:
        """New entries at once; a mere commit a little later, it mostly travels with entries."""
        if not self._barrier.clean:
            self._beat()
        told_last, told_commit = self._told
        if self._log.last_index > told_last or self._resend:
            self._SyncObj__sendAppendEntries()
        elif self.commit_index > told_commit:
            now_s = ENGINE_CLOCK.read()
            if self._commit_notice_s is None:
                self._commit_notice_s = now_s + COMMIT_NOTICE_S
                self._events.wake(COMMIT_NOTICE_S)
            elif now_s >= self._commit_notice_s:
                self._SyncObj__sendAppendEntries()

    # Proposals.

    def propose(self, payload: bytes, epoch: int) -> int | None:
        """Append an entry in this very term; its index, or None if this node does not lead it."""
        if self.halted or not payload or self.active_epoch != epoch or self.term != epoch:
            return None
        index = self._log.last_index + 1
        self._log.append(COMMAND_REGULAR + payload, index, epoch)
        return index

    def entries(self, from_index: int, count_max: int) -> Sequence[Entry] | None:
        """Applied entries from `from_index` on; None where they are trimmed."""
        first = self._log.first_index
        if from_index <= first:
            if first != GENESIS_INDEX:
                return None
            from_index = first + 1
        start = from_index - first
        return self._log.entries[start : min(start + count_max, self.applied - first + 1)]

    # Leadership.

    def _SyncObj__onBecomeLeader(self) -> None:
        self._led_term = self.term
        self._told = (0, 0)
        self._beat_due_s = 0.0
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__setState(self, state: int) -> None:
        was_leader = self.is_leader
        super()._SyncObj__setState(state)
        if was_leader and state != LEADER:
            epoch = self._led_term
            assert epoch is not None
            self.active_epoch = self._led_term = None
            self._read_index.end()
            for peer_id in list(self._senders):
                self._end_transfer(peer_id)
            self._events.resigned(epoch)

    def best_successor(self) -> int | None:
        """The peer to hand leadership to: one that has the whole log; None while there is none."""
        for peer_id, node in self._peers.items():
            if self._SyncObj__raftMatchIndex.get(node) == self._log.last_index:
                return peer_id
        return None

    def hand_over(self, peer_id: int) -> None:
        """Ask a peer to campaign at once."""
        self.tell(peer_id, {"type": wire.TIMEOUT_NOW, "term": self.term})

    def resign(self) -> None:
        """Stop leading, of one's own accord."""
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def is_connected(self, peer_id: int) -> bool:
        """Whether the network reaches a voter."""
        return self._peers[peer_id] in self._SyncObj__connectedNodes

    def progress_of(self, peer_id: int) -> tuple[int, int, float]:
        """A voter's match index, next index, and seconds since its last answer; as leader."""
        node = self._peers[peer_id]
        answered_s = self._SyncObj__lastResponseTime.get(node)
        return (
            self._SyncObj__raftMatchIndex.get(node, 0),
            self._SyncObj__raftNextIndex.get(node, 0),
            0.0 if answered_s is None else ENGINE_CLOCK.read() - answered_s,
        )

    # Joining.

    def peer_connected(self, peer_id: int) -> None:
        super().peer_connected(peer_id)
        self._join_query_s = 0.0
        self._events.wake(0.0)

    def _drive_joining(self) -> None:
        if self._join_barrier is not None:
            if self._barrier.durable >= self._join_barrier and not self._join_announced:
                self._join_announced = True
                self._events.joined()
            return
        if self.joining.cluster_is_new and self.term == 0:
            self._join(0)
            return
        now_s = ENGINE_CLOCK.read()
        if now_s >= self._join_query_s:
            self._join_query_s = now_s + JOIN_QUERY_INTERVAL_S
            for peer_id in self._peers:
                self.tell(peer_id, {"type": wire.JOIN_QUERY, "round": self.joining.round})

    def _on_join_query(self, node: Any, message: Message) -> None:
        if self._join_rounds.get(node.id) != message["round"]:
            # It may have lost what it once acknowledged: that counts for no further commit.
            self._join_rounds[node.id] = message["round"]
            self._SyncObj__raftMatchIndex[node] = 0
        self.tell(
            node.id,
            {
                "type": wire.JOIN_REPLY,
                "round": message["round"],
                "term": self.term,
                "last_log_index": self._log.last_index,
            },
        )

    def _on_join_reply(self, node: Any, message: Message) -> None:
        if not self._joined:
            self.joining.answer(
                node.id, message["round"], message["term"], message["last_log_index"]
            )

    def _on_append_entries(self, node: Any, message: Message) -> None:
        leader_commit = message["commit_index"]
        super()._on_append_entries(node, message)
        if self._joined or self._join_barrier is not None or self.halted:
            return
        floor = self.joining.floor
        caught_up = (
            self.leader_id == node.id
            and self.commit_index >= leader_commit
            and self._log.term_at(leader_commit) == self.term
        )
        if floor is not None and caught_up:
            self._join(floor)

    def _join(self, floor: int) -> None:
        """From here on this voter votes, above `floor`; first that must be durable."""
        if self.term > 0 or floor > 0:
            # Whatever it may have voted for in this term, it does not vote in it again.
            term = max(self.term, floor)
            if term > self.term:
                self._follow(term)
            if self._SyncObj__votedForNodeId is None:
                self._SyncObj__setCurrentTerm(term, self.node_id)
        self._join_barrier = self._barrier.noted
        self._events.wake(0.0)

    def confirm_joined(self) -> None:
        """The vote's floor and the directory's `joined` are durable."""
        self._joined = True
        if self.term == 0:
            self.campaign_soon()
        self._events.wake(0.0)
