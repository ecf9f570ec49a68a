"""The host of one replica: it carries out the replica's decisions (`partition/`) on its log, streams and clients.

    event --> Replica.step --> effects --> log, streams, ISR proposals, responses
                  ^                            |
                  +---- Appended, Synced, .. --+

A host is a passive object on the event loop: a caller hands it an event, and the effects are applied before the call
returns. Disk work that may block runs on a disk thread, and its result is another event. There is no task and no lock
per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from odradek_broker.compiled import mypyc_attr
from odradek_broker.log.log_config import TimestampKind
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import LogDamaged, StorageRefused
from odradek_broker.log.storage import StorageFailed as LogFailed
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Effect, Role
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.batch_checks import (
    LARGE_BYTES_MIN,
    NO_TRANSACTIONAL_ID,
    NO_TRANSACTIONS,
    BatchRefused,
    CheckedBatches,
    check_client_batches,
    scan_replicated,
)
from odradek_broker.replication.client_requests import (
    ClientRequests,
    OnDeleted,
    OnProduced,
    Produce,
    ProduceQueue,
    ProduceTransaction,
)
from odradek_broker.replication.counters import TopicTraffic, VisibleBytes
from odradek_broker.replication.disk.log_work import LogWork
from odradek_broker.replication.host_ports import Surroundings, Watcher
from odradek_broker.replication.host_transactions import (
    HostTransactions,
    TransactionEffect,
    marker_batches,
)
from odradek_broker.replication.outcomes import ProduceOutcome
from odradek_broker.replication.produce_check import ProduceCheck
from odradek_broker.replication.streams.replica_streams import ReplicaStreams, StreamEffect
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_runtime.logs import event_log

_STORAGE_ERROR: Final = ErrorCode.KAFKA_STORAGE_ERROR
_LOG_APPEND_TIME: Final = TimestampKind.LOG_APPEND_TIME
_log = event_log(__name__)


@mypyc_attr(allow_interpreted_subclasses=True)  # the simulator has a subclass
class PartitionHost:
    """One replica on this broker, with its log, and with the requests and streams that depend on the replica."""

    __slots__ = (
        "_clock",
        "_events",
        "_is_stepping",
        "_queue",
        "_received",
        "_requests",
        "_shared",
        "_streams",
        "_transactions",
        "_visible",
        "is_awake",
        "is_failed",
        "is_removed",
        "log",
        "partition",
        "replica",
        "topic",
        "traffic",
        "watchers",
        "work",
    )

    def __init__(
        self,
        *,
        topic: TopicName,
        log: PartitionLog,
        broker_id: BrokerId,
        settings: ReplicaSettings,
        attach_seqs: Any,  # an itertools.count of ints
        shared: Surroundings[PartitionHost],
    ) -> None:
        self.topic = topic
        self.traffic = shared.counters.traffic.of(topic)
        self.log = log
        self.partition: TopicIdPartition = log.id
        self.watchers: dict[Watcher[PartitionHost], None] = {}  # in the order of registration
        self.is_awake = False  # whether this host receives Tick events
        self.is_failed = False
        self.is_removed = False
        self.work = LogWork(self, log, shared)
        self._transactions: HostTransactions | None = None
        self._visible = VisibleBytes.of(log)
        self._shared = shared
        self._clock = shared.clock
        self._requests = ClientRequests(shared.counters)
        self._streams = ReplicaStreams(self, shared)
        self._queue = ProduceQueue(shared.produce_turns, self)
        self._received: bytes | memoryview = b""
        self._events: list[ev.Event] = []
        self._is_stepping = False
        self.replica = Replica(
            partition=self.partition,
            broker_id=broker_id,
            settings=settings,
            log=LogAtOpen(
                log_start=log.log_start_offset,
                log_end=log.log_end_offset,
                durable_end=log.durable_end_offset,
                high_watermark=log.high_watermark,
                epochs=tuple(log.epochs.entries()),
            ),
            producers=log.producers,
            attach_seqs=attach_seqs,
            coordinators=shared.coordinator_epochs,
        )

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition.partition}"

    def step(self, event: ev.Event) -> None:
        """Let the replica handle an event, and carry out its effects. Events that the effects cause are handled
        afterwards.
        """
        if self._queue.requests and not self.is_removed:
            self._queue.flush()
        if self._is_stepping:
            self._events.append(event)
            return
        if self._events:  # remaining from a step in which the storage failed
            self._events.append(event)
            event = self._events.pop(0)
        self._run(event)

    def _run(self, work: ev.Event | Produce, base_offset: Offset = NO_OFFSET) -> None:
        """Handle an event, or append a produce at `base_offset`. Then handle the events that this has caused."""
        if not self.is_awake:
            self.is_awake = True
            self._shared.wake(self)
        self._is_stepping = True
        bug: Exception | None = None
        try:
            if isinstance(work, Produce):
                self._append_lone(work, base_offset)
            else:
                self._do(self.replica.step(work, self._clock.boottime_ms()))
            while self._events:
                self._do(self.replica.step(self._events.pop(0), self._clock.boottime_ms()))
        except (LogFailed, OSError) as failure:
            self._shared.storage_failed(failure)
        except Exception as error:
            bug = error
        finally:
            self._is_stepping = False
        if bug is not None:
            self.found_bug(bug)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Return a context in which an internal error takes only this replica offline. The error is not raised again,
        so that the caller can continue with other partitions. Storage failures are raised."""
        try:
            yield
        except (LogFailed, OSError):
            raise
        except Exception as error:
            self.found_bug(error)

    def found_bug(self, error: Exception) -> None:
        """Take this replica offline after an internal error; the other replicas continue.

        The log of the replica is not changed. The next start of the broker recovers the log as after a kill.
        """
        if self.is_failed or self.is_removed:
            _log.error(
                "Replica that is already offline failed on another internal error",
                exc=error,
                partition=str(self),
            )
            return
        replica = self.replica
        _log.error(
            "Replica failed on an internal error; it stays offline until the broker restarts",
            exc=error,
            partition=str(self),
            role=replica.role.value,
            leader_epoch=replica.leader_epoch,
            log_start_offset=replica.log_start,
            high_watermark=replica.high_watermark,
            log_end_offset=replica.log_end,
            stored_end_offset=self.log.log_end_offset,
        )
        self._shared.counters.partition_bugs += 1
        self.log.is_trusted = False
        self._end(ev.BugFound(reason=f"{self}: {type(error).__name__}: {error}"))

    def read_failed(self, failure: LogFailed) -> None:
        """Handle a storage error that occurred in a read of this log, or in other work on its files."""
        if not isinstance(failure, LogDamaged):
            self._shared.storage_failed(failure)
        elif not (self.is_failed or self.is_removed) and self.work.damage_found(failure):
            self._end(ev.BugFound(reason=f"{self}: {failure}"))

    def produce(
        self,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        on_done: OnProduced,
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
        transaction: ProduceTransaction | None = None,
    ) -> None:
        """Check batches, write offsets and times into them, and append them. `on_done` is called exactly once, possibly
        before this returns."""
        config = self.log.config
        now_ms = self._clock.wall_ms()
        context = (expected_leader_epoch, transaction)
        transactional: BatchRefused | None = NO_TRANSACTIONAL_ID
        if transaction is not None:
            transactional = None if self._shared.registrar is not None else NO_TRANSACTIONS
        checks = self._shared.record_checks
        checked = None
        if len(records) < LARGE_BYTES_MIN:
            checked = check_client_batches(records, config, now_ms, is_internal, transactional)
            reads_records = config.cleanup_compact or config.compression is not None
            if (
                type(checked) is CheckedBatches
                and (not reads_records or is_internal)
                and not checks.is_busy(self)
            ):
                self._append_checked(records, checked, None, acks, timeout_ms, on_done, *context)
                return
        ProduceCheck(records, checked, config, now_ms, is_internal, transactional).run(
            checks,
            self,
            lambda check, refused: self._append_checked(
                check.records, check.checked, refused, acks, timeout_ms, on_done, *context
            ),
        )

    def _append_checked(
        self,
        records: bytes | bytearray | memoryview,
        checked: CheckedBatches | None,
        refused: BatchRefused | None,
        acks: int,
        timeout_ms: int,
        on_done: OnProduced,
        expected_leader_epoch: LeaderEpoch,
        transaction: ProduceTransaction | None,
    ) -> None:
        if refused is not None:
            self._shared.counters.produce_errors += 1
            invalid = refused.invalid_records
            on_done(ProduceOutcome(refused.error, message=refused.message, invalid_records=invalid))
            return
        assert checked is not None, "batches that are not refused were checked"
        if self.is_removed:
            on_done(ProduceOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        producer = checked.producer
        is_by_broker = self.log.config.timestamp_kind is _LOG_APPEND_TIME
        time_ms = self._clock.wall_ms() if is_by_broker else -1
        produce = Produce.of(records, checked, on_done, time_ms)
        is_gated = transaction is not None and transaction.includes(producer)
        waits = not is_gated and self._queue.is_for(acks, records, expected_leader_epoch)
        is_busy = self._is_stepping or self._queue.requests or self._events
        if not (waits or is_gated or is_busy):
            base_offset = self.replica.begin_lone(acks, producer, expected_leader_epoch)
            if base_offset is not None:
                self._run(produce, base_offset)
                return
        event = ev.ProduceRequested(
            request_id=self._requests.add_produce(produce),
            record_count=checked.record_count,
            acks=acks,
            deadline_ms=self._clock.boottime_ms() + timeout_ms if acks == -1 else 0,
            producer=producer,
            expected_leader_epoch=expected_leader_epoch,
        )
        if waits:
            self._queue.add(event)
        else:
            self.step(event if transaction is None else transaction.event(event))

    def _append_lone(self, produce: Produce, base_offset: Offset) -> None:
        """Append a produce to which `Replica.begin_lone` has given `base_offset`, and respond to its client."""
        replica, counters, now_ms = self.replica, self._shared.counters, self._clock.boottime_ms()
        epoch, outcome = replica.leader_epoch, None
        try:
            info = self.log.append(produce.stamped(base_offset, epoch), now_ms=now_ms)
            counters.append_bytes += info.size_bytes
            self.traffic.bytes_in += info.size_bytes
            counters.append_records += produce.batches.record_count
            counters.append_batches += len(produce.batches.positions)
            self._visible.appended(info.end_offset, info.size_bytes)
            effects = replica.step(ev.Appended(end_offset=info.end_offset), now_ms)
            time_ms, log_start = produce.log_append_time_ms, self.log.log_start_offset
            outcome = ProduceOutcome(ErrorCode.NONE, base_offset, time_ms, log_start, epoch)
        except LogFailed as failure:
            self._append_failed(failure)
        finally:  # also after an internal error, because only this method knows the request
            self._requests.respond(
                produce,
                outcome or ProduceOutcome(_STORAGE_ERROR, message=self._shared.storage_problem),
            )
        if outcome is not None:
            self._do(effects)
            self._streams.mark_due()

    def delete_records(self, before_offset: Offset, *, timeout_ms: int, on_done: OnDeleted) -> None:
        """Raise the log start offset to `before_offset` (-1: to the high watermark).

        `on_done` is called exactly once, possibly before this returns, with the low watermark.
        """
        self.step(
            ev.DeleteRecordsRequested(
                request_id=self._requests.add_delete(on_done),
                before_offset=before_offset,
                deadline_ms=self._clock.boottime_ms() + timeout_ms,
            )
        )

    def data_received(
        self,
        *,
        session_id: int,
        leader_epoch: LeaderEpoch,
        base_offset: Offset,
        high_watermark: Offset,
        log_start: Offset,
        records: bytes | memoryview,
    ) -> None:
        """Handle batches, or only a new high watermark, that the leader sent."""
        assert not self._is_stepping, "data of a leader arrived during a step"
        scanned = scan_replicated(records, base_offset)
        self._received = records
        self.step(
            ev.DataReceived(
                session_id=session_id,
                leader_epoch=leader_epoch,
                base_offset=base_offset,
                end_offset=scanned.end_offset,
                high_watermark=high_watermark,
                log_start=log_start,
                epochs=scanned.epochs,
                is_intact=scanned.is_intact,
            )
        )
        self._received = b""

    def detached(self, session: ev.FollowerSession) -> None:
        """Stop sending data to a follower's session, because the follower detached, or the log lacks the records that
        the follower needs."""
        stream = self._streams.ended(session)
        if stream is not None:
            stream.forget(self)
        self.step(ev.DetachReceived(session=session))

    def session_closed(self, session: ev.FollowerSession) -> None:
        """Handle the end of a follower's stream to which this host sent data."""
        self._streams.ended(session)
        self.step(ev.FollowerSessionClosed(session=session))

    def removed(self) -> None:
        """Remove this replica, because the metadata image no longer assigns it to this broker."""
        self.is_removed = True
        self.step(ev.PartitionRemoved())
        self._queue.flush()  # the replica refuses the queued requests
        self._streams.end_all()
        self.traffic = TopicTraffic()  # ends the topic's series: `gc.freeze` may keep this host
        self._notify()

    def failed(self, reason: str) -> None:
        """Take the replica offline, because its data directory is offline."""
        if not self.is_failed:
            self._end(ev.StorageFailed(reason=reason))

    def _end(self, event: ev.StorageFailed | ev.BugFound) -> None:
        """Take the replica offline. If one effect fails, the others are still done, so all requests get responses."""
        self.is_failed = True
        self._events.clear()
        now_ms = self._clock.boottime_ms()
        refused = self._queue.take()
        for effect in (*self.replica.step(event, now_ms), *self.replica.step(refused, now_ms)):
            try:
                self._do((effect,))
            except Exception as error:
                _log.error(
                    "Failed to finish taking a replica offline",
                    exc=error,
                    partition=str(self),
                )
        self._notify()

    @property
    def visible_bytes(self) -> int:
        """The number of bytes that the high watermark has passed. Only differences of this count have a meaning."""
        return self._visible.total_bytes

    @property
    def stable_bytes(self) -> int:
        """The number of bytes that the last stable offset has passed. Only differences of this count have a meaning."""
        return self._visible.stable_bytes

    @property
    def transactions(self) -> HostTransactions:
        """The transactional requests that wait for a response."""
        if self._transactions is None:
            self._transactions = HostTransactions(self, self._shared.counters, self._clock)
        return self._transactions

    @property
    def is_leader(self) -> bool:
        """Whether this replica is the leader according to the metadata image."""
        return self.replica.role is Role.LEADER

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            _DO[type(effect)](self, effect)

    def _append(self, effect: fx.Append) -> None:
        counters = self._shared.counters
        now_ms = self._clock.boottime_ms()
        try:
            if effect.request_id is None:
                if effect.base_offset < self.log.log_end_offset:
                    # The leader's log start is rarely inside a batch, and this log is empty, so waiting for the disk is
                    # acceptable.
                    assert self.log.log_start_offset == self.log.log_end_offset, effect
                    self.log.reset_to(effect.base_offset)
                info = self.log.append(self._received, now_ms=now_ms)
                counters.replication_bytes_in += info.size_bytes
            else:
                data, records, batches = self._requests.batches_of(effect)
                info = self.log.append(data, now_ms=now_ms)
                counters.append_bytes += info.size_bytes
                self.traffic.bytes_in += info.size_bytes
                counters.append_records += records
                counters.append_batches += batches
        except LogFailed as failure:
            self._append_failed(failure)
            return
        self._visible.appended(info.end_offset, info.size_bytes)
        self._do(self.replica.step(ev.Appended(end_offset=info.end_offset), now_ms))
        self._streams.mark_due()

    def _append_failed(self, failure: LogFailed) -> None:
        # Until the replica knows how the append ended, it must not handle any other event.
        if isinstance(failure, StorageRefused) and self.log.is_intact:
            self._do(self.replica.step(ev.AppendRefused(), self._clock.boottime_ms()))
            return
        self._shared.storage_failed(failure)
        self.failed(str(failure))

    def _append_markers(self, effect: fx.AppendMarkers) -> None:
        batches = marker_batches(effect, now_ms=self._clock.wall_ms())
        try:
            info = self.log.append(batches, now_ms=self._clock.boottime_ms())
        except LogFailed as failure:
            self._append_failed(failure)
            return
        self._visible.appended(info.end_offset, info.size_bytes)
        appended = ev.MarkersAppended(end_offset=info.end_offset)
        self._do(self.replica.step(appended, self._clock.boottime_ms()))
        self._streams.mark_due()

    def _of_transactions(self, effect: TransactionEffect) -> None:
        self.transactions.carry_out(effect, self._shared.registrar)

    def _sync(self, _effect: fx.Sync) -> None:
        self.work.sync()

    def _truncate_to(self, effect: fx.TruncateTo) -> None:
        self._shared.counters.truncations += 1
        _log.info(
            "Truncating the log to where it diverges from the leader's log",
            partition=str(self),
            from_offset=self.log.log_end_offset,
            to_offset=effect.end_offset,
        )
        end = effect.end_offset
        self._visible.cut(end)
        self.work.cut(lambda: self.log.begin_truncate(end), ev.Truncated(), end_offset=end)

    def _reset_log(self, effect: fx.ResetLog) -> None:
        _log.warning(
            "Emptying the log, because it has no records in common with the leader's log",
            partition=str(self),
            start_offset=effect.start_offset,
            log_end_offset=self.log.log_end_offset,
        )
        start = effect.start_offset
        self._visible.cut(start)
        self.work.cut(lambda: self.log.begin_reset(start), ev.LogReset(), end_offset=start)

    def _assign_epoch(self, effect: fx.AssignEpoch) -> None:
        self.log.assign_epoch(effect.leader_epoch)

    def _advance_log_start(self, effect: fx.AdvanceLogStart) -> None:
        self.log.advance_log_start(effect.log_start)
        self._streams.mark_due()

    def _to_streams(self, effect: StreamEffect) -> None:
        self._streams.carry_out(effect)

    def _propose_isr(self, effect: fx.ProposeIsr) -> None:
        self._shared.propose_isr(self, effect)

    def _respond_to_produce(self, effect: fx.RespondToProduce) -> None:
        problem = self._shared.storage_problem if effect.error_code is _STORAGE_ERROR else ""
        self._requests.respond_to_produce(effect, self.log.log_start_offset, problem)

    def _respond_to_delete(self, effect: fx.RespondToDelete) -> None:
        self._requests.respond_to_delete(effect)

    def _high_watermark_moved(self, effect: fx.HighWatermarkMoved) -> None:
        log = self.log
        log.set_high_watermark(effect.high_watermark)
        if log.producers.may_hold_back:
            self._visible.committed_behind(effect.high_watermark, log.last_stable_offset)
        else:
            self._visible.committed(effect.high_watermark)
        self._streams.mark_due()
        if self.watchers:
            self._notify()

    def _role_changed(self, effect: fx.RoleChanged) -> None:
        self._shared.counters.leader_changes += 1
        self._streams.end_all()
        self._shared.role_changed(self, effect)
        self._notify()

    def _partition_failed(self, effect: fx.PartitionFailed) -> None:
        if effect.is_bug:
            self._shared.partition_broke(self, effect.reason)
        elif self.log.is_intact:
            # If a full disk left the log half written, the log is not intact, and FullDisk opens it again.
            self._shared.storage_failed(effect.reason)

    def _notify(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.on_partition_moved(self)


_DO: Final[dict[type[Any], Callable[[PartitionHost, Any], None]]] = {
    fx.Append: PartitionHost._append,
    fx.AppendMarkers: PartitionHost._append_markers,
    fx.RegisterTransaction: PartitionHost._of_transactions,
    fx.AnswerMarkers: PartitionHost._of_transactions,
    fx.OrphanEnded: PartitionHost._of_transactions,
    fx.TransactionTorn: PartitionHost._of_transactions,
    fx.Sync: PartitionHost._sync,
    fx.TruncateTo: PartitionHost._truncate_to,
    fx.ResetLog: PartitionHost._reset_log,
    fx.AssignEpoch: PartitionHost._assign_epoch,
    fx.AdvanceLogStart: PartitionHost._advance_log_start,
    fx.SendAttached: PartitionHost._to_streams,
    fx.SendDiverged: PartitionHost._to_streams,
    fx.SendSnapshotless: PartitionHost._to_streams,
    fx.SendRefused: PartitionHost._to_streams,
    fx.SendAttach: PartitionHost._to_streams,
    fx.SendDetach: PartitionHost._to_streams,
    fx.SendAck: PartitionHost._to_streams,
    fx.ProposeIsr: PartitionHost._propose_isr,
    fx.RespondToProduce: PartitionHost._respond_to_produce,
    fx.RespondToDelete: PartitionHost._respond_to_delete,
    fx.HighWatermarkMoved: PartitionHost._high_watermark_moved,
    fx.RoleChanged: PartitionHost._role_changed,
    fx.PartitionFailed: PartitionHost._partition_failed,
}
