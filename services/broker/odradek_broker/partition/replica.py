"""One replica of one partition: what its broker decides about it.

    IDLE <--> LEADER <--> FOLLOWER <--> IDLE      whenever the image's leader epoch rises
    any of them -- StorageFailed, BugFound --> FAILED      for the rest of the process's life
    any of them -- PartitionRemoved --> IDLE      for good: the topic is gone

The image decides the role, in feed order; a state of a lower partition epoch is ignored (I8). Only
a higher leader epoch changes the role, also when the same broker leads again: what a leader knew
belongs to one epoch. While the log is being cut the change waits (`_parked`): the next epoch's
start is the log end, which is not settled before. The cut may be finished safely, because the
leader that asked for it held all that was ever acknowledged.

What each role does is in leader.py and follower.py, what may be asked in readable_replica.py; this
file hands each event to the role it concerns, and drops those that come too late for it (a stale
session's message is no error).

Storage effects belong to the log, not to the role: an Append is answered before anything else
happens, a Sync may outlive a change of role, and of cuts there is one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from odradek_broker.partition import events
from odradek_broker.partition.effects import (
    AnswerDelete,
    AnswerProduce,
    Effect,
    PartitionFailed,
    Role,
    RoleChanged,
    SendRefused,
)
from odradek_broker.partition.events import BrokerView, Event, PartitionChanged
from odradek_broker.partition.follower import Follower
from odradek_broker.partition.leading.leader import Leader
from odradek_broker.partition.leading.producer_sequences import ProducerSequences
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.readable_replica import ReadableReplica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import (
    NO_BROKER,
    NO_OFFSET,
    BrokerId,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode


class Replica(ReadableReplica):
    """One replica. Owned by one task; nothing here waits, and `step` does no per-record work."""

    __slots__ = ("_attach_seqs", "_brokers", "_parked", "_producers", "_settings", "partition")

    def __init__(
        self,
        *,
        partition: TopicIdPartition,
        broker_id: BrokerId,
        settings: ReplicaSettings,
        log: LogAtOpen,
        producers: ProducerSequences,
        attach_seqs: Iterator[int],
    ) -> None:
        """`attach_seqs`: one `itertools.count(1)` per broker process, shared by its replicas, so
        that an Attach never bears a number that an earlier replica of the partition used."""
        super().__init__(broker_id, log)
        self.partition = partition
        self._settings = settings
        self._producers = producers
        self._attach_seqs = attach_seqs
        self._parked: PartitionChanged | None = None
        self._brokers: dict[BrokerId, BrokerView] = {}

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Take one event; the effects are to be done in order before the next one.

        `now_ms` never falls. An AssertionError is a bug: hand in BugFound, which stops this
        partition and no other.
        """
        return _HANDLERS[type(event)](self, event, now_ms)

    # --- the role --------------------------------------------------------------------------------

    def _on_partition_changed(self, view: PartitionChanged, now_ms: int) -> Sequence[Effect]:
        if self._is_removed or view.partition_epoch < self.partition_epoch:
            return ()
        for broker in view.brokers:
            self._brokers[broker.broker_id] = broker
        if self.role is Role.FAILED:
            self._view = view
            return ()
        if view.leader_epoch > self.leader_epoch and self._log.cutting_to is not None:
            self._parked = view
            return ()
        return self._adopt(view, now_ms)

    def _adopt(self, view: PartitionChanged, now_ms: int) -> Sequence[Effect]:
        assert view.leader_epoch >= self.leader_epoch, f"{view} after epoch {self.leader_epoch}"
        is_new_epoch = view.leader_epoch > self.leader_epoch
        self._log.is_fsync = view.is_fsync
        before, self._view = self._view, view
        if not is_new_epoch:
            assert before is None or before.leader == view.leader, f"{before} then {view}"
            return self._adopt_within_epoch(view, now_ms)
        effects = self._resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if view.leader == self._broker_id:
            self._change_role(effects, Role.LEADER)
            self._leading = Leader(
                view,
                self._brokers,
                broker_id=self._broker_id,
                log=self._log,
                producers=self._producers,
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
        """A reassignment may add or drop a follower without a new leader epoch."""
        if self._leading is not None:
            return self._leading.adopt(view, self._brokers, now_ms)
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
        self._brokers[broker.broker_id] = broker
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
        """R11: nothing is acknowledged any more, nothing of it pushed.

        After a bug what the log holds is not in doubt, so the claim to the ISR is not lost with it.
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

    # --- clients and the log ---------------------------------------------------------------------

    def _on_produce(self, event: events.ProduceRequested, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_produce(event)
        return (
            AnswerProduce(
                request_id=event.request_id,
                error_code=self._why_not_leading(),
                base_offset=NO_OFFSET,
                leader_epoch=self.leader_epoch,
            ),
        )

    def _on_delete_records(
        self, event: events.DeleteRecordsRequested, now_ms: int
    ) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_delete_records(event, now_ms)
        return (
            AnswerDelete(
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

    def _on_append_refused(self, event: events.AppendRefused, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_append_failed()
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

    # --- followers' messages ---------------------------------------------------------------------

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

    # --- time ------------------------------------------------------------------------------------

    def _on_tick(self, event: events.Tick, now_ms: int) -> Sequence[Effect]:
        if self._leading is not None:
            return self._leading.on_tick(now_ms)
        return self._following.on_tick(now_ms) if self._following is not None else ()


_Handler: TypeAlias = Callable[[Replica, Any, int], Sequence[Effect]]


def _of_leader(handle: Callable[[Leader, Any, int], Sequence[Effect]]) -> _Handler:
    """Hand it to the leader; who leads no longer need not know."""

    def handler(replica: Replica, event: Any, now_ms: int) -> Sequence[Effect]:
        leading = replica._leading
        return handle(leading, event, now_ms) if leading is not None else ()

    return handler


def _of_follower(handle: Callable[[Follower, Any, int], Sequence[Effect]]) -> _Handler:
    """Hand it to the follower; who follows no longer need not know."""

    def handler(replica: Replica, event: Any, now_ms: int) -> Sequence[Effect]:
        following = replica._following
        return handle(following, event, now_ms) if following is not None else ()

    return handler


# Any: a handler takes the one event class that it stands beside, which a dict cannot say.
_HANDLERS: Final[dict[type[Any], _Handler]] = {
    PartitionChanged: Replica._on_partition_changed,
    events.BrokerChanged: Replica._on_broker_changed,
    events.PartitionRemoved: Replica._on_removed,
    events.StorageFailed: Replica._on_failed,
    events.BugFound: Replica._on_failed,
    events.Tick: Replica._on_tick,
    # clients and the log
    events.ProduceRequested: Replica._on_produce,
    events.DeleteRecordsRequested: Replica._on_delete_records,
    events.Appended: Replica._on_appended,
    events.AppendRefused: Replica._on_append_refused,
    events.Synced: Replica._on_synced,
    events.Truncated: Replica._on_cut,
    events.LogReset: Replica._on_cut,
    events.LogStartAdvanced: Replica._on_log_start,
    # from followers, and the controller to whom leads
    events.AttachReceived: Replica._on_attach,
    events.DetachReceived: _of_leader(Leader.on_detached),
    events.FollowerSessionClosed: _of_leader(Leader.on_detached),
    events.AckReceived: _of_leader(Leader.on_ack),
    events.DataSent: _of_leader(Leader.on_data_sent),
    events.IsrChangeAnswered: _of_leader(Leader.on_isr_answered),
    events.LeaderStalled: _of_leader(Leader.on_stalled),
    # from the leader
    events.SessionReady: _of_follower(Follower.on_session_ready),
    events.LeaderSessionClosed: _of_follower(Follower.on_session_closed),
    events.AttachedReceived: _of_follower(Follower.on_attached),
    events.DivergedReceived: _of_follower(Follower.on_diverged),
    events.SnapshotlessReceived: _of_follower(Follower.on_snapshotless),
    events.DataReceived: _of_follower(Follower.on_data),
    events.RefusedReceived: _of_follower(Follower.on_refused),
}
