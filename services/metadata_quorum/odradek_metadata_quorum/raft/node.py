"""One voter: the Raft engine, and the objects that implement its hooks. This code does no I/O itself.

    receive(peer, message) ---+                       +--> outbox --(write barrier)--> network
    propose(payload, epoch) --+--> step() -- engine --+--> barrier.start_write() -----> disk
    a write became durable ---+                       +--> apply --> events.applied, active, ...

Timers are checked only in `step`. The owner must call `step` soon after each `receive` or `propose`, and whenever
`events.wake` requests it. All changes of one step are written to the disk in one write, and sent in one message to each
peer.

A new entry is first in memory and recorded for the next disk write. It is *durable* when the write barrier reports that
it is on disk, and only then it is sent to the peers. It is *committed* when a majority has acknowledged it in this
term. Then it is *applied*, in the order of the log.

A node that was elected becomes the *active* leader, which accepts proposals, when the no-op entry of its term is
committed and applied. Its leadership ends when it sees a higher term, or when a majority has not responded for too
long. The outcome of all pending proposals is then unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from odradek_metadata_quorum.network import wire
from odradek_metadata_quorum.network.outbox import Outbox
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.elections import Confirmed, Elections
from odradek_metadata_quorum.raft.engine import COMMAND_REGULAR, Engine, EngineHooks
from odradek_metadata_quorum.raft.joining import Joining
from odradek_metadata_quorum.raft.log_matching import LogMatching
from odradek_metadata_quorum.raft.replicated_state import ReplicatedState
from odradek_metadata_quorum.raft.replication import Replication
from odradek_metadata_quorum.raft.shell import (
    RaftEvents,
    RaftLimits,
    RaftTimers,
    StateMachine,
)
from odradek_metadata_quorum.raft.snapshots import SnapshotReceiving, SnapshotSending
from odradek_metadata_quorum.storage.disk import DiskQueue, Fatal
from odradek_metadata_quorum.storage.log_recovery import Entry
from odradek_metadata_quorum.storage.snapshot_store import SnapshotId, SnapshotStore
from odradek_metadata_quorum.storage.write_barrier import WriteBarrier


class RaftNode:
    """One voter without its I/O. Its parts implement the hooks of the engine (`EngineHooks`)."""

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
        """Load the snapshot and the log. Raises `CorruptStorage`.

        `joined` is the value in the identity file of the data directory. `queued_bytes(peer_id)` returns the number of
        bytes that the network has buffered for a peer.
        """
        loaded = ReplicatedState.load(state_machine, snapshots, barrier.log)
        engine = self.engine = Engine(
            node_id=node_id,
            voters=voters,
            barrier=barrier,
            outbox=outbox,
            heartbeat_s=timers.heartbeat_s,
            clock=clock,
            fatal=fatal,
        )
        self._events = events
        self.log = barrier.log
        self.active_epoch: int | None = None
        self._led_term: int | None = None
        self.elections = Elections(engine, timers=timers, randomness=randomness, may_vote=joined)
        self.state = ReplicatedState(
            engine,
            state_machine=state_machine,
            snapshots=snapshots,
            log_queue=log_queue,
            snapshot_queue=snapshot_queue,
            limits=limits,
            events=events,
            loaded=loaded,
        )
        self.log_matching = LogMatching(
            engine, self.elections, window_bytes_max=limits.window_bytes_max
        )
        self.snapshot_sending = SnapshotSending(
            engine, snapshots, chunk_bytes=limits.snapshot_chunk_bytes
        )
        self.replication = Replication(
            engine,
            self.snapshot_sending,
            queued_bytes=queued_bytes,
            window_bytes_max=limits.window_bytes_max,
            heartbeat_s=timers.heartbeat_s,
            events=events,
        )
        snapshot_receiving = SnapshotReceiving(
            engine,
            self.log_matching,
            self.state,
            snapshots,
            snapshot_queue,
            bytes_max=limits.snapshot_bytes_max,
            events=events,
        )
        if not engine.peer_ids:
            self.elections.campaign_soon()
        self.joining = Joining(
            engine, self.elections, round_number=randomness.getrandbits(32), events=events
        )
        self._handlers = {
            wire.APPEND_ENTRIES: self._on_append_entries,
            wire.NEXT_NODE_IDX: self.replication.on_next_node_idx,
            wire.REQUEST_VOTE: self.elections.on_request_vote,
            wire.RESPONSE_VOTE: self.elections.on_response_vote,
            wire.PRE_VOTE: self.elections.on_pre_vote,
            wire.PRE_VOTE_REPLY: self.elections.on_pre_vote_reply,
            wire.TIMEOUT_NOW: self.elections.on_timeout_now,
            wire.INSTALL_SNAPSHOT: snapshot_receiving.on_install_snapshot,
            wire.SNAPSHOT_REPLY: self.replication.on_snapshot_reply,
            wire.JOIN_QUERY: self.joining.on_join_query,
            wire.JOIN_REPLY: self.joining.on_join_reply,
        }
        engine.attach(
            EngineHooks(
                send=self.replication.send,
                replicate=self.replication.replicate,
                election_timeout_s=self.elections.election_timeout_s,
                may_campaign=self.elections.may_campaign,
                before_term=self.elections.before_term,
                before_leading=self._before_leading,
                lost_leadership=self._lost_leadership,
                truncate_from=self.log_matching.truncate_from,
                respond_to_append=self.log_matching.respond_to_append,
                apply_committed=self._apply_committed,
            )
        )

    # Methods by which the owner drives the node.

    def step(self) -> None:
        """Run the engine once, send the messages that are due, and start the disk write of recorded changes."""
        engine = self.engine
        if engine.halted:
            return
        self.elections.begin_step()
        self.joining.step()
        engine.tick()
        if engine.halted:
            return
        if engine.is_leader:
            self.elections.drive_reads()
            self.replication.send_due()
        engine.barrier.start_write()

    def receive(self, peer_id: int, message: Message) -> None:
        """Handle a message of another voter. The caller must call `step` soon."""
        if peer_id not in self.engine.peer_ids or self.engine.halted:
            return
        handler = self._handlers.get(message["type"])
        if handler is not None:
            handler(peer_id, message)

    def became_durable(self) -> None:
        """Send the messages that waited for the disk write that has ended."""
        engine = self.engine
        if engine.halted:
            return
        engine.outbox.flush()
        self.elections.became_durable()
        # A follower without entries to apply, as most followers are after a write, needs no step now: the next tick is
        # soon enough.
        if engine.is_leader or engine.commit_index > engine.applied or not self.may_vote:
            self._events.wake(0.0)

    def peer_connected(self, peer_id: int) -> None:
        """Record that the network is connected to another voter."""
        self.engine.connect(peer_id)
        self.joining.peer_connected()
        self._events.wake(0.0)

    def peer_disconnected(self, peer_id: int) -> None:
        """Record that the network lost the connection to another voter."""
        self.engine.disconnect(peer_id)
        self.elections.peer_disconnected(peer_id)
        self.replication.peer_disconnected(peer_id)

    def halt(self, reason: str, error: BaseException | None = None) -> None:
        """Stop sending messages, and end the process by calling `fatal`."""
        self.engine.halt(reason, error)

    def stop(self) -> None:
        """Stop sending messages, without ending the process."""
        self.engine.halted = True

    # Requests of the owner.

    def propose(self, payload: bytes, epoch: int) -> int | None:
        """Append an entry with the term `epoch`. Return its index, or None if this node is not the active leader of
        that term. The caller must call `step` soon.
        """
        engine = self.engine
        if engine.halted or not payload or self.active_epoch != epoch or engine.term != epoch:
            return None
        index = self.log.last_index + 1
        self.log.append(COMMAND_REGULAR + payload, index, epoch)
        return index

    def confirm_leadership(self, confirmed: Confirmed) -> None:
        """Call `confirmed` with the result of `Elections.confirm_leadership`. The caller must call `step` soon."""
        self.elections.confirm_leadership(confirmed)

    def entries(self, from_index: int, count_max: int) -> Sequence[Entry] | None:
        """Return at most `count_max` applied entries from `from_index` on. Return None if the log no
        longer has them.
        """
        return self.state.entries(from_index, count_max)

    def best_successor(self) -> int | None:
        """Return a peer that has the whole log, so that leadership can be handed over to it, or None."""
        return self.replication.best_successor()

    def hand_over(self, peer_id: int) -> None:
        """Ask a peer to start an election at once, so that it becomes the leader."""
        self.engine.tell(peer_id, {"type": wire.TIMEOUT_NOW, "term": self.term})

    def resign(self) -> None:
        """Become a follower in the same term."""
        self.engine.step_down()

    def confirm_joined(self) -> None:
        """Begin to vote. The owner calls this when it has stored durably that this voter has joined."""
        self.joining.confirm_joined()

    # Properties for status and metrics.

    @property
    def may_vote(self) -> bool:
        """Whether this voter may vote. False while it may have lost the record of earlier votes (`joining.py`)."""
        return self.elections.may_vote

    @property
    def node_id(self) -> int:
        """This voter's id."""
        return self.engine.node_id

    @property
    def term(self) -> int:
        """Raft's current term."""
        return self.engine.term

    @property
    def is_leader(self) -> bool:
        """Whether this node is the leader, as far as it knows."""
        return self.engine.is_leader

    @property
    def is_candidate(self) -> bool:
        """Whether this node is a candidate."""
        return self.engine.is_candidate

    @property
    def leader_id(self) -> int | None:
        """The id of the leader, as far as this node knows; None during an election."""
        return self.engine.leader_id

    @property
    def commit_index(self) -> int:
        """The index of the last entry that is known to be committed."""
        return self.engine.commit_index

    @property
    def applied(self) -> int:
        """The index of the last entry that was applied to the state machine."""
        return self.engine.applied

    @property
    def snapshot(self) -> SnapshotId | None:
        """The newest snapshot of this node; None if there is none."""
        return self.state.snapshot

    def is_connected(self, peer_id: int) -> bool:
        """Return whether the network is connected to another voter."""
        return self.engine.is_connected(peer_id)

    def progress_of(self, peer_id: int) -> tuple[int, int, float]:
        """Return the match index and next index of another voter, and the seconds since its last response. These values
        are valid only on the leader.
        """
        engine = self.engine
        responded_s = engine.responded_s(peer_id)
        silent_s = 0.0 if responded_s is None else engine.now_s() - responded_s
        return engine.match_index(peer_id), engine.next_index(peer_id), silent_s

    def is_sending_snapshot_to(self, peer_id: int) -> bool:
        """Return whether this leader is sending a snapshot to another voter."""
        return self.snapshot_sending.is_sending_to(peer_id)

    # Hooks of the engine that involve several parts.

    def _on_append_entries(self, leader_id: int, message: Message) -> None:
        leader_commit = message["commit_index"]
        self.log_matching.on_append_entries(leader_id, message)
        self.joining.after_append(leader_id, leader_commit)

    def _apply_committed(self) -> None:
        engine = self.engine
        self.state.apply_committed()
        if (
            self.active_epoch is None
            and engine.is_leader
            and not engine.halted
            and engine.applied >= engine.no_op_index
        ):
            self.active_epoch = self._led_term
            assert self.active_epoch == engine.term, (self.active_epoch, engine.term)
            self._events.active(engine.term)

    def _before_leading(self) -> None:
        self._led_term = self.engine.term
        self.replication.before_leading()

    def _lost_leadership(self) -> None:
        epoch = self._led_term
        assert epoch is not None
        self.active_epoch = self._led_term = None
        self.elections.lost_leadership()
        self.snapshot_sending.end_all()
        self._events.resigned(epoch)
