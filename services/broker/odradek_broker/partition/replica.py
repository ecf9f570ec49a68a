"""One replica of one partition: its role, and the handler of each event.

    IDLE <--> LEADER <--> FOLLOWER <--> IDLE            whenever the image's leader epoch rises
    any role -- StorageFailed, BugFound --> FAILED      until the broker restarts
    any role -- PartitionRemoved --> IDLE               for good: this broker has no such replica any more

The metadata image decides the role. The replica applies the partition's states in the order of the metadata feed, and
ignores a state with a lower partition epoch. Each higher leader epoch gets a new `Leader` object, even when the same
broker leads again, because a leader's knowledge of its followers is valid in one epoch only.

While the log is being truncated or reset, a change of the leader epoch waits in `_parked`: the next epoch starts at the
log end, which is unknown until the truncation is finished. It is safe to finish the truncation for the old leader,
because that leader had all records that were ever acknowledged.

The work of each role is in leader.py and follower.py. This file passes each event to the role that it concerns, and
drops events that arrive too late for that role (a message of a stale session is no error).

Storage effects belong to the log, not to the role: the host reports the end of an Append before any other event, a Sync
may finish after the role has changed, and at most one truncation or reset is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

from odradek_broker.partition import events
from odradek_broker.partition.effects import (
    AnswerMarkers,
    DataDue,
    Effect,
    PartitionFailed,
    ReadBound,
    RespondToDelete,
    RespondToProduce,
    Role,
    RoleChanged,
    SendRefused,
    Sync,
)
from odradek_broker.partition.events import BrokerView, Event, FollowerSession, PartitionChanged
from odradek_broker.partition.follower import Follower, Phase
from odradek_broker.partition.leader import Leader
from odradek_broker.partition.log_positions import LogAtOpen, LogPositions
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.partition.produces import ProducerSequences
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode

_SERVING: Final = (Role.LEADER, Role.FOLLOWER)


class Replica:
    """One replica of a partition. It is not thread-safe. Its methods never wait, and `step` does no work per
    record.
    """

    __slots__ = (
        "_attach_seqs",
        "_broker_id",
        "_brokers",
        "_coordinators",
        "_following",
        "_guards",
        "_is_removed",
        "_leading",
        "_log",
        "_parked",
        "_producers",
        "_settings",
        "_view",
        "leader_epoch",
        "partition",
        "role",
    )

    def __init__(
        self,
        *,
        partition: TopicIdPartition,
        broker_id: BrokerId,
        settings: ReplicaSettings,
        log: LogAtOpen,
        producers: ProducerSequences,
        attach_seqs: Iterator[int],
        coordinators: CoordinatorEpochs | None = None,
    ) -> None:
        """`attach_seqs` is one `itertools.count(1)` that all replicas of a broker process share, so that no Attach has
        a number that an earlier replica of the partition has used. All replicas of the process share `coordinators`,
        too.
        """
        self.partition = partition
        self.role = Role.IDLE
        self.leader_epoch = NO_LEADER_EPOCH  # the leader epoch of `_view`
        self._broker_id = broker_id
        self._log = LogPositions.at_open(log)
        self._view: PartitionChanged | None = None
        self._leading: Leader | None = None
        self._following: Follower | None = None
        self._is_removed = False
        self._settings = settings
        self._producers = producers
        self._attach_seqs = attach_seqs
        self._coordinators = coordinators if coordinators is not None else CoordinatorEpochs()
        # The numbers (guards) of transaction registrations. No number is used twice, whatever the leader epoch.
        self._guards: Iterator[int] | None = None
        self._parked: PartitionChanged | None = None
        # Partitions with the same brokers share this tuple.
        self._brokers: tuple[BrokerView, ...] = ()

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Handle an event and return its effects, which the host carries out in this order before the next event.

        `now_ms` never decreases from call to call. An AssertionError is an internal error: the host then passes
        BugFound, which stops only this partition.
        """
        return _HANDLERS[type(event)](self, event, now_ms)

    def _on_partition_changed(self, view: PartitionChanged, now_ms: int) -> Sequence[Effect]:
        if self._is_removed or view.partition_epoch < self.partition_epoch:
            return ()
        self._brokers = _updated(self._brokers, view.brokers)
        if self.role is Role.FAILED:
            self._view, self.leader_epoch = view, view.leader_epoch
            return ()
        if view.leader_epoch > self.leader_epoch and self._log.cutting_to is not None:
            self._parked = view
            return ()
        return self._adopt(view, now_ms)

    def _adopt(self, view: PartitionChanged, now_ms: int) -> Sequence[Effect]:
        assert view.leader_epoch >= self.leader_epoch, f"{view} after epoch {self.leader_epoch}"
        is_new_epoch = view.leader_epoch > self.leader_epoch
        self._log.is_fsync = view.is_fsync
        self._log.unsynced_max = 1 if view.is_fsync else view.flush_messages
        self._log.flush_ms = view.flush_ms
        previous, self._view, self.leader_epoch = self._view, view, view.leader_epoch
        if not is_new_epoch:
            assert previous is None or previous.leader == view.leader, f"{previous} then {view}"
            return self._adopt_within_epoch(view, now_ms)
        effects = self._resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if view.leader == self._broker_id:
            self._change_role(effects, Role.LEADER)
            if self._guards is None:
                self._guards = count(1)
            self._leading = Leader(
                view,
                {broker.broker_id: broker for broker in self._brokers},
                broker_id=self._broker_id,
                log=self._log,
                producers=self._producers,
                coordinators=self._coordinators,
                guards=self._guards,
                settings=self._settings,
                now_ms=now_ms,
            )
            effects.extend(self._leading.begin(now_ms))
        elif self._is_follower_of(view):
            self._follow(effects, view)
        else:
            self._change_role(effects, Role.IDLE)
        return effects

    def _adopt_within_epoch(self, view: PartitionChanged, now_ms: int) -> Sequence[Effect]:
        """Apply a state with the same leader epoch. A reassignment may have added or removed this follower."""
        if self._leading is not None:
            brokers = {broker.broker_id: broker for broker in self._brokers}
            return self._leading.adopt(view, brokers, now_ms)
        effects: list[Effect] = []
        if self._following is None and self._is_follower_of(view):
            self._follow(effects, view)
        elif self._following is not None and not self._is_follower_of(view):
            effects = self._resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._change_role(effects, Role.IDLE)
        elif self._following is not None:
            effects = self._following.adopt()
        return effects

    def _is_follower_of(self, view: PartitionChanged) -> bool:
        return view.leader not in (NO_BROKER, self._broker_id) and self._broker_id in view.replicas

    def _follow(self, effects: list[Effect], view: PartitionChanged) -> None:
        self._change_role(effects, Role.FOLLOWER)
        self._following = Follower(
            view.leader,
            view.leader_epoch,
            log=self._log,
            attach_seqs=self._attach_seqs,
            settings=self._settings,
        )

    def _resign(self, error_code: ErrorCode) -> list[Effect]:
        effects: list[Effect] = []
        if self._leading is not None:
            effects.extend(self._leading.resign(error_code))
        if self._following is not None:
            effects.extend(self._following.resign())
        self._leading = self._following = None
        return effects

    def _change_role(self, effects: list[Effect], role: Role) -> None:
        self.role = role
        effects.append(RoleChanged(role=role, leader=self.leader, leader_epoch=self.leader_epoch))

    def _on_broker_changed(self, event: events.BrokerChanged, now_ms: int) -> Sequence[Effect]:
        broker = event.broker
        self._brokers = _updated(self._brokers, (broker,))
        return self._leading.see_broker(broker, now_ms) if self._leading is not None else ()

    def _on_removed(self, event: events.PartitionRemoved, now_ms: int) -> Sequence[Effect]:
        effects = self._resign(ErrorCode.UNKNOWN_TOPIC_ID)
        self._is_removed = True
        self._parked = None
        self._change_role(effects, Role.IDLE)
        return effects

    def _on_failed(
        self, event: events.StorageFailed | events.BugFound, now_ms: int
    ) -> Sequence[Effect]:
        """Stop acknowledging and sending data (rule R11).

        The host reports the failure to the controller, which then treats this replica as fenced.
        """
        if self.role is Role.FAILED:
            return ()
        effects: list[Effect] = []
        if self._leading is not None:
            effects.extend(self._leading.on_append_failed())
        if self._following is not None:
            self._following.on_append_failed()
        effects.extend(self._resign(ErrorCode.KAFKA_STORAGE_ERROR))
        self._parked = None
        self._change_role(effects, Role.FAILED)
        is_bug = isinstance(event, events.BugFound)
        effects.append(PartitionFailed(reason=event.reason, is_bug=is_bug))
        return effects

    def _on_produce(self, event: events.ProduceRequested, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_produce(event)
        return [self._refused_produce(event)]

    def begin_lone(
        self, acks: int, producer: events.ProducerBatch | None, expected_leader_epoch: LeaderEpoch
    ) -> Offset | None:
        """Begin the append of one produce request that needs no more than the append, and return the base offset.

        None means that the host must pass the request as an event. Otherwise the host appends the batches, passes
        Appended or AppendRefused, and responds to the client itself, all before the next event.
        """
        if self._leading is None:
            return None
        return self._leading.begin_lone(acks, producer, expected_leader_epoch)

    def _refused_produce(self, event: events.ProduceRequested) -> RespondToProduce:
        return RespondToProduce(
            request_id=event.request_id,
            error_code=self._why_not_leading(),
            base_offset=NO_OFFSET,
            leader_epoch=self.leader_epoch,
        )

    def _on_produces(self, event: events.ProducesRequested, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_produces(event)
        return [self._refused_produce(request) for request in event.requests]

    def _on_transactional_produce(
        self, event: events.TransactionalProduceRequested, now_ms: int
    ) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_transactional_produce(event, now_ms)
        return self._on_produce(event.produce, now_ms)

    def _on_markers(self, event: events.MarkersRequested, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_markers(event, now_ms)
        return [self._refused_markers(event.request_id, len(event.markers))]

    def _on_hanging_transaction(
        self, event: events.HangingTransactionResolved, now_ms: int
    ) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_hanging_transaction(event, now_ms)
        return [self._refused_markers(event.request_id, 1)]

    def _refused_markers(self, request_id: int, count: int) -> AnswerMarkers:
        codes = (self._why_not_leading(),) * count
        epoch = self.leader_epoch
        return AnswerMarkers(request_id=request_id, error_codes=codes, leader_epoch=epoch)

    def _on_delete_records(
        self, event: events.DeleteRecordsRequested, now_ms: int
    ) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_delete_records(event, now_ms)
        return (
            RespondToDelete(
                request_id=event.request_id,
                error_code=self._why_not_leading(),
                low_watermark=NO_OFFSET,
                leader_epoch=self.leader_epoch,
            ),
        )

    def _why_not_leading(self) -> ErrorCode:
        if self._is_removed:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.role is Role.FAILED:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _on_appended(self, event: events.Appended, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_appended(event.end_offset, now_ms)
        assert self._following is not None, f"{event} while {self.role}"
        return self._following.on_appended(event.end_offset)

    def _on_markers_appended(self, event: events.MarkersAppended, now_ms: int) -> Sequence[Effect]:
        assert self._leading is not None, f"{event} while {self.role}"
        return self._leading.on_markers_appended(event.end_offset, now_ms)

    def _on_append_refused(self, event: events.AppendRefused, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_append_refused()
        assert self._following is not None, f"{event} while {self.role}"
        return self._following.on_append_refused(now_ms)

    def _on_synced(self, event: events.Synced, now_ms: int) -> Sequence[Effect]:
        self._log.synced(event.durable_end)
        if self._leading is not None:
            return self._leading.on_synced()
        return self._following.on_synced() if self._following is not None else ()

    def _on_cut(self, event: events.Truncated | events.LogReset, now_ms: int) -> Sequence[Effect]:
        if self.role is Role.FAILED:
            return ()
        self._log.finish_cut()
        parked, self._parked = self._parked, None
        if parked is not None:
            return self._adopt(parked, now_ms)
        return self._following.on_cut(now_ms) if self._following is not None else ()

    def _on_log_start(self, event: events.LogStartAdvanced, now_ms: int) -> Sequence[Effect]:
        moved = self._log.advance_start(event.log_start)
        if moved and self._leading is not None:
            return self._leading.on_log_start_advanced()
        return ()

    def _on_attach(self, event: events.AttachReceived, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_attach(event, now_ms)
        code = self._why_not_leading()
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and event.leader_epoch > self.leader_epoch:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        return (
            SendRefused(
                session=event.session,
                attach_seq=event.attach_seq,
                error_code=code,
                leader_epoch=self.leader_epoch,
            ),
        )

    @property
    def waits_for_time(self) -> bool:
        """Whether the replica waits for a point in time: a later Tick can have an effect by itself."""
        if self._log.waits_for_flush and self.role is not Role.FAILED:
            return True
        if self._leading is not None:
            return self._leading.waits_for_time
        return self._following is not None and self._following.waits_for_time

    def _on_tick(self, event: events.Tick, now_ms: int) -> Sequence[Effect]:
        effects: list[Effect] = []
        if self._leading is not None:
            effects = self._leading.on_tick(now_ms)
        elif self._following is not None:
            effects = self._following.on_tick(now_ms)
        if self.role is not Role.FAILED and self._log.is_flush_due(now_ms):
            self._log.is_syncing = True
            effects.append(Sync())
        return effects

    @property
    def leader(self) -> BrokerId:
        return self._view.leader if self._view is not None else NO_BROKER

    @property
    def partition_epoch(self) -> PartitionEpoch:
        return self._view.partition_epoch if self._view is not None else PartitionEpoch(-1)

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    @property
    def log_start(self) -> Offset:
        return self._log.log_start

    @property
    def log_end(self) -> Offset:
        return self._log.log_end

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last record, for Attach and ReportLogEnds."""
        return self._log.last_epoch

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this replica is the leader, and its committed ISR is smaller than min.insync.replicas."""
        return self._leading is not None and self._leading.isr.is_under_min

    @property
    def is_streaming(self) -> bool:
        """Whether this replica is a follower to which the leader sends data."""
        return self._following is not None and self._following.phase is Phase.STREAMING

    def data_due(self, session: FollowerSession) -> DataDue | None:
        """Return the Data message that the follower must be sent next in this session. None: there is no such message,
        or the follower is not attached in this session.
        """
        return self._leading.data_due(session) if self._leading is not None else None

    def may_respond(
        self,
        leader_epoch: LeaderEpoch,
        *,
        lease_until_ms: int,
        now_ms: int,
        is_replicated: bool = False,
    ) -> bool:
        """Return whether a response that was made in `leader_epoch` may be written to the socket now (rule R13).

        The replica must still have its role in the same epoch, and the broker's lease must not have expired. The lease
        bounds how stale a response can be; safety does not depend on clocks.

        `is_replicated` means that the response contains only what the whole maximal ISR has confirmed in this epoch.
        Such a response may be sent after the lease has expired, because the next leader is a member of that ISR and has
        the records too. It may not be sent if the lease was ended (0), nor while the leader is alone in the ISR and no
        other broker has confirmed anything: otherwise a broker whose id another process has taken over could respond
        for ever.
        """
        if leader_epoch != self.leader_epoch or self.role not in _SERVING:
            return False
        if now_ms < lease_until_ms:
            return True
        is_confirmed = self._leading is not None and len(self._leading.isr.maximal) > 1
        return is_replicated and lease_until_ms > 0 and is_confirmed

    def read_bound(
        self,
        *,
        last_stable_offset: Offset,
        is_committed_only: bool,
        client_leader_epoch: int = -1,
        fetch_offset: Offset = NO_OFFSET,
    ) -> ReadBound:
        """Return which offsets a consumer may read at this replica, a leader (rule R14) or a follower (rule R15).

        `last_stable_offset` is that of the log. If `fetch_offset` is given and a read cannot start there, the bound has
        an error: OFFSET_OUT_OF_RANGE outside of the log, OFFSET_NOT_AVAILABLE above a follower's high watermark.
        """
        log = self._log
        end = log.high_watermark
        if is_committed_only:
            end = min(last_stable_offset, end)
        code = self._refusal_of_reader(client_leader_epoch)
        if code is ErrorCode.NONE and fetch_offset != NO_OFFSET:
            code = log.refusal_of_read(fetch_offset, is_leader=self.role is Role.LEADER)
        return ReadBound(code, log.log_start, end, self.leader_epoch)

    def latest_offset(
        self, *, last_stable_offset: Offset, is_committed_only: bool, client_leader_epoch: int = -1
    ) -> ReadBound:
        """Return the bound whose `end_offset` is the response to ListOffsets(latest).

        The error is OFFSET_NOT_AVAILABLE while the high watermark is below the start of this leader epoch, because
        consumers may have seen higher offsets at the previous leader.
        """
        bound = self.read_bound(
            last_stable_offset=last_stable_offset,
            is_committed_only=is_committed_only,
            client_leader_epoch=client_leader_epoch,
        )
        leading = self._leading
        if bound.error_code is not ErrorCode.NONE:
            return bound
        if leading is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif self._log.high_watermark < leading.epoch_start:
            code = ErrorCode.OFFSET_NOT_AVAILABLE
        else:
            return bound
        return ReadBound(code, bound.start_offset, bound.end_offset, bound.leader_epoch)

    def _refusal_of_reader(self, client_leader_epoch: int) -> ErrorCode:
        if self._is_removed:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.role is Role.FAILED:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if client_leader_epoch != NO_LEADER_EPOCH and client_leader_epoch != self.leader_epoch:
            if client_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.role is Role.LEADER:
            return ErrorCode.NONE
        in_isr = self._view is not None and self._broker_id in self._view.isr
        return ErrorCode.NONE if in_isr and self.is_streaming else ErrorCode.NOT_LEADER_OR_FOLLOWER


# Any: each handler takes the event class of its own key in `_HANDLERS`, which the type of a dict cannot express.
_Handler: TypeAlias = Callable[[Replica, Any, int], Sequence[Effect]]


def _of_leader(handle: Callable[[Leader, Any, int], Sequence[Effect]]) -> _Handler:
    """Return a handler that passes the event to the leader, and ignores it if the replica no longer leads."""

    def handler(replica: Replica, event: Any, now_ms: int) -> Sequence[Effect]:
        leading = replica._leading
        return handle(leading, event, now_ms) if leading is not None else ()

    return handler


def _of_follower(handle: Callable[[Follower, Any, int], Sequence[Effect]]) -> _Handler:
    """Return a handler that passes the event to the follower, and ignores it if the replica no longer follows."""

    def handler(replica: Replica, event: Any, now_ms: int) -> Sequence[Effect]:
        following = replica._following
        return handle(following, event, now_ms) if following is not None else ()

    return handler


def _updated(
    known: tuple[BrokerView, ...], newer: tuple[BrokerView, ...]
) -> tuple[BrokerView, ...]:
    """Return the states of all brokers in both tuples; those in `newer` replace those in `known`."""
    if known is newer:
        return newer
    ids = [broker.broker_id for broker in newer]
    others = tuple(broker for broker in known if broker.broker_id not in ids)
    return (*others, *newer) if others else newer


_HANDLERS: Final[dict[type[Any], _Handler]] = {
    PartitionChanged: Replica._on_partition_changed,
    events.BrokerChanged: Replica._on_broker_changed,
    events.PartitionRemoved: Replica._on_removed,
    events.StorageFailed: Replica._on_failed,
    events.BugFound: Replica._on_failed,
    events.Tick: Replica._on_tick,
    # Events of clients, transaction coordinators and the log.
    events.ProduceRequested: Replica._on_produce,
    events.ProducesRequested: Replica._on_produces,
    events.TransactionalProduceRequested: Replica._on_transactional_produce,
    events.TransactionVerified: _of_leader(Leader.on_transaction_verified),
    events.MarkersRequested: Replica._on_markers,
    events.HangingTransactionResolved: Replica._on_hanging_transaction,
    events.DeleteRecordsRequested: Replica._on_delete_records,
    events.Appended: Replica._on_appended,
    events.MarkersAppended: Replica._on_markers_appended,
    events.AppendRefused: Replica._on_append_refused,
    events.Synced: Replica._on_synced,
    events.Truncated: Replica._on_cut,
    events.LogReset: Replica._on_cut,
    events.LogStartAdvanced: Replica._on_log_start,
    # Events of a leader's followers, and of the controller.
    events.AttachReceived: Replica._on_attach,
    events.DetachReceived: _of_leader(Leader.on_detached),
    events.FollowerSessionClosed: _of_leader(Leader.on_detached),
    events.AckReceived: _of_leader(Leader.on_ack),
    events.DataSent: _of_leader(Leader.on_data_sent),
    events.IsrChangeResponded: _of_leader(Leader.on_isr_answered),
    events.LeaderStalled: _of_leader(Leader.on_stalled),
    # Events of a follower's leader.
    events.SessionReady: _of_follower(Follower.on_session_ready),
    events.LeaderSessionClosed: _of_follower(Follower.on_session_closed),
    events.AttachedReceived: _of_follower(Follower.on_attached),
    events.DivergedReceived: _of_follower(Follower.on_diverged),
    events.SnapshotlessReceived: _of_follower(Follower.on_snapshotless),
    events.DataReceived: _of_follower(Follower.on_data),
    events.RefusedReceived: _of_follower(Follower.on_refused),
}
