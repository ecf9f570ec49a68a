"""One partition as listeners and coordinators use it: this broker's replica, with the rules for its clients.

`LocalPartitions.find` returns a Partition. A request looks its partition up once, and then uses the same replica until
its response is encoded. If the replica is removed in the meantime, reads return the error that `find` would then
return, and the gate refuses responses.

The replica decides up to which offset clients may read (rules R14, R15 of partition/README.md); the log stores the
records.

The gate (rule R13): a response may be sent only while the broker's lease is valid and the replica still has its role in
the epoch of the response. A response to acks=all needs no lease if `acks.all.without.controller.enable` is set. A
listener passes each outcome to `gate_produce` or `gate_read` when it encodes the response, and sends the result.

Everything runs on the broker's event loop. Expected errors are values (`ErrorCode` in the outcome); an exception is a
bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from odradek_broker.cluster.heartbeat import Lease
from odradek_broker.log.log_reads import OffsetOutOfRange, ReadPlan, ReadResult
from odradek_broker.log.producer_state import ProducerEntry
from odradek_broker.log.storage import StorageFailed
from odradek_broker.partition.effects import ReadBound
from odradek_broker.partition.events import Marker
from odradek_broker.replication.client_requests import ProduceTransaction
from odradek_broker.replication.host_transactions import OnMarked
from odradek_broker.replication.outcomes import (
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    OFFSET_OF_MAX_TIMESTAMP,
    AbortedRange,
    OffsetOutcome,
    ProduceOutcome,
    ReadOutcome,
    Topic,
)
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.partition_table import PartitionTable
from odradek_protocol.identity import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.topic_names import INTERNAL_TOPICS

_ACKS_ALL: Final = -1
_PRODUCE_ACKS: Final = frozenset({_ACKS_ALL, 0, 1})
_NONE: Final = ErrorCode.NONE
_NOT_LEADER: Final = OffsetOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)
# After these errors the replica can be read, although the requested offset may be wrong.
_READABLE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRules:
    """The lease, the counters and the settings that apply to all partitions of a broker when it serves clients."""

    table: PartitionTable
    lease: Lease
    broker_id: BrokerId
    reads_by_rack: bool
    acks_all_without_controller: bool


class Partition(Struct, frozen=True, eq=False, gc=False):
    """This broker's replica of a partition, as its clients and coordinators use it.

    `host` runs the replica; an object that waits for new records registers itself with the host. `_topic` is the name
    or id by which the request named the topic.
    """

    host: PartitionHost
    _topic: Topic
    _rules: ServingRules

    def produce(
        self,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
        on_done: Callable[[ProduceOutcome], None],
        expected_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_internal: bool = False,
        transaction: ProduceTransaction | None = None,
    ) -> None:
        """Check whole batches, write offsets and times into them, and append them.

        `on_done` is called exactly once, possibly before this returns. A writable buffer (bytearray, writable
        memoryview) is changed in place and belongs to the log afterwards: the caller must not use it again. `bytes` are
        copied once. `acks` is 0, 1 or -1. A coordinator sets `expected_leader_epoch`: in any other epoch the batches
        are refused with NOT_LEADER_OR_FOLLOWER. `is_internal` allows internal topics and control batches. Batches of a
        transaction need `transaction`, which the transaction's coordinator confirms.
        """
        host = self.host
        self._rules.table.counters.produce_requests += 1
        if acks not in _PRODUCE_ACKS:
            on_done(
                ProduceOutcome(
                    ErrorCode.INVALID_REQUIRED_ACKS, message=f"acks={acks}: must be 0, 1 or -1"
                )
            )
            return
        if not is_internal and host.topic in INTERNAL_TOPICS:
            on_done(
                ProduceOutcome(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    message=f"{host.topic} is an internal topic, which only brokers write",
                )
            )
            return
        host.produce(
            records,
            acks=acks,
            timeout_ms=timeout_ms,
            on_done=on_done,
            expected_leader_epoch=expected_leader_epoch,
            is_internal=is_internal,
            transaction=transaction,
        )

    def write_markers(
        self, markers: Sequence[Marker], *, timeout_ms: int, on_done: OnMarked
    ) -> None:
        """Append markers of a transaction coordinator, all in one append.

        `on_done` is called exactly once, possibly before this returns, with an error code for each marker. NONE means
        that the marker is committed.
        """
        host = self.host
        if host.is_removed:
            on_done((self._removed(),) * len(markers))
            return
        leader_epoch = host.replica.leader_epoch

        def done(codes: Sequence[ErrorCode]) -> None:
            if not self.may_respond(leader_epoch):
                codes = [
                    ErrorCode.NOT_LEADER_OR_FOLLOWER if code is ErrorCode.NONE else code
                    for code in codes
                ]
            on_done(codes)

        deadline_ms = self._rules.table.clock.boottime_ms() + timeout_ms
        host.transactions.write(markers, on_done=done, deadline_ms=deadline_ms)

    def read(
        self,
        offset: Offset,
        *,
        bytes_max: int,
        read_committed: bool,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        at_least_one_batch: bool = True,
        may_send_files: bool = False,
        verify: bool = False,
    ) -> ReadOutcome | Awaitable[ReadOutcome]:
        """Read records from `offset` on. Return the outcome if the bytes are in memory, or else an awaitable that reads
        them on a disk thread.

        With `verify` the CRCs of bytes from the disk are checked, and a wrong CRC counts as damage of the replica.
        Without `verify`, the client must check the CRCs. With `may_send_files` a leader's bytes may stay in the page
        cache, as a `file_slice`. A follower's bytes may not: its log can be truncated before they are sent, and the
        gate would not notice that.
        """
        host = self.host
        if host.is_removed:
            return ReadOutcome(self._removed())
        log = host.log
        last_stable_offset = log.last_stable_offset
        bound = host.replica.read_bound(
            last_stable_offset=last_stable_offset,
            is_committed_only=read_committed,
            client_leader_epoch=current_leader_epoch,
            fetch_offset=offset,
        )
        if last_fetched_epoch >= 0 and bound.error_code in _READABLE:
            diverging = self._divergence(offset, last_fetched_epoch)
            if diverging is not None:
                return self._empty(bound, offset, last_stable_offset, diverging)
        if bound.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(bound)
        if bound.error_code is not ErrorCode.NONE:
            return ReadOutcome(bound.error_code, leader_epoch=bound.leader_epoch)
        if offset >= bound.end_offset:
            return self._empty(bound, offset, last_stable_offset)
        try:
            plan = log.plan_read(
                offset, bytes_max=bytes_max, end_offset=bound.end_offset, verify=verify
            )
            if not plan.is_hot:
                return self._read_cold(plan, bound, offset, read_committed)
            result = plan.run(as_file_slice=may_send_files and host.is_leader)
        except OffsetOutOfRange:
            return ReadOutcome(ErrorCode.OFFSET_OUT_OF_RANGE, leader_epoch=bound.leader_epoch)
        except StorageFailed as failure:
            host.read_failed(failure)
            return ReadOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        if not at_least_one_batch and result.size_bytes > bytes_max:
            return self._empty(bound, offset, last_stable_offset)
        return self._outcome(result, bound, offset, read_committed)

    async def _read_cold(
        self, plan: ReadPlan, bound: ReadBound, offset: Offset, is_committed_only: bool
    ) -> ReadOutcome:
        table = self._rules.table
        table.counters.fetch_reads_cold += 1
        try:
            result = await table.pool.call(plan.run)
        except StorageFailed as failure:
            self.host.read_failed(failure)
            return ReadOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        if is_committed_only and offset < self.host.log.log_start_offset:
            # Retention may have deleted the segments of these records with their transaction indexes, so the broker no
            # longer knows which of the records were aborted.
            return self._out_of_range(bound)
        return self._outcome(result, bound, offset, is_committed_only)

    def _outcome(
        self, result: ReadResult, bound: ReadBound, offset: Offset, is_committed_only: bool
    ) -> ReadOutcome:
        host, counters = self.host, self._rules.table.counters
        counters.fetch_reads += 1
        counters.fetch_bytes += result.size_bytes
        host.traffic.bytes_out += result.size_bytes
        aborted = None
        if is_committed_only:
            aborted = [
                AbortedRange(ProducerId(transaction.producer_id), Offset(transaction.first_offset))
                for transaction in host.log.aborted_transactions(
                    result.start_offset, result.end_offset
                )
            ]
        return ReadOutcome(
            ErrorCode.NONE,
            result.slices,
            result.size_bytes,
            max(result.end_offset, offset),
            host.replica.high_watermark,
            host.log.last_stable_offset,
            host.log.log_start_offset,
            aborted,
            bound.leader_epoch,
            file_slice=result.file_slice,
        )

    def _out_of_range(self, bound: ReadBound) -> ReadOutcome:
        host = self.host
        return ReadOutcome(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            high_watermark=host.replica.high_watermark,
            last_stable_offset=host.log.last_stable_offset,
            log_start_offset=host.log.log_start_offset,
            leader_epoch=bound.leader_epoch,
        )

    def _empty(
        self,
        bound: ReadBound,
        offset: Offset,
        last_stable_offset: Offset,
        diverging: tuple[LeaderEpoch, Offset] | None = None,
    ) -> ReadOutcome:
        return ReadOutcome(
            ErrorCode.NONE,
            (),
            0,
            offset,
            self.host.replica.high_watermark,
            last_stable_offset,
            self.host.log.log_start_offset,
            leader_epoch=bound.leader_epoch,
            diverging=diverging,
        )

    def _divergence(
        self, offset: Offset, last_fetched_epoch: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset] | None:
        """Return the (epoch, end offset) at which the reader's log diverges from this log (KIP-595); None if the logs
        do not diverge.
        """
        log = self.host.log
        # If the reader's epoch is later than all epochs of this log, the logs diverge at the end of this log's latest
        # epoch.
        epoch, end = log.epochs.end_of(
            min(last_fetched_epoch, log.epochs.latest), log.log_end_offset
        )
        if epoch < 0 or end < 0:
            return None
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    def preferred_replica(self, client_rack: str) -> ReadOutcome | None:
        """Return an outcome that names an in-sync replica in the client's rack (KIP-392); None if the client should
        read from this replica.
        """
        host, rules = self.host, self._rules
        if not rules.reads_by_rack or not client_rack or not host.is_leader:
            return None
        image = rules.table.image
        state = image.partition(host.partition.topic_id, host.partition.partition)
        own = image.brokers.get(rules.broker_id)
        if state is None or own is None or own.rack == client_rack:
            return None
        for broker_id in state.isr:
            broker = image.brokers.get(broker_id)
            if broker is not None and broker.is_live and broker.rack == client_rack:
                return ReadOutcome(
                    ErrorCode.NONE,
                    high_watermark=host.replica.high_watermark,
                    last_stable_offset=host.log.last_stable_offset,
                    log_start_offset=host.log.log_start_offset,
                    leader_epoch=host.replica.leader_epoch,
                    preferred_read_replica=broker_id,
                )
        return None

    async def offset_at(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool = False,
        current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    ) -> OffsetOutcome:
        """Look up the offset of the first record at or after a timestamp, in ms since the Unix epoch (ListOffsets).

        `timestamp_ms` can also be OFFSET_LATEST, OFFSET_EARLIEST or OFFSET_OF_MAX_TIMESTAMP.
        """
        host = self.host
        if not host.is_leader:
            return _NOT_LEADER
        log = host.log
        bound = host.replica.latest_offset(
            last_stable_offset=log.last_stable_offset,
            is_committed_only=read_committed,
            client_leader_epoch=current_leader_epoch,
        )
        if timestamp_ms == OFFSET_EARLIEST:
            if bound.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE):
                return OffsetOutcome(bound.error_code)
            if not self.may_respond(host.replica.leader_epoch):
                return _NOT_LEADER
            start = log.log_start_offset
            return OffsetOutcome(ErrorCode.NONE, start, -1, log.epochs.at(start))
        if bound.error_code is not ErrorCode.NONE:
            return OffsetOutcome(bound.error_code)
        if timestamp_ms == OFFSET_LATEST:
            if not self.may_respond(bound.leader_epoch):
                return _NOT_LEADER
            return OffsetOutcome(ErrorCode.NONE, bound.end_offset, -1, bound.leader_epoch)
        pool = self._rules.table.pool
        try:
            if timestamp_ms == OFFSET_OF_MAX_TIMESTAMP:
                position = await pool.call(log.max_timestamp_offset)
            elif timestamp_ms < 0:
                return OffsetOutcome(ErrorCode.UNSUPPORTED_VERSION)
            else:
                position = await pool.call(lambda: log.offset_for_timestamp(timestamp_ms))
        except StorageFailed as failure:
            host.read_failed(failure)
            return OffsetOutcome(ErrorCode.KAFKA_STORAGE_ERROR)
        # The lease or the leadership may have ended during the lookup.
        if not self.may_respond(bound.leader_epoch):
            return _NOT_LEADER
        if position is None or position.offset >= bound.end_offset:
            return OffsetOutcome(ErrorCode.NONE)
        return OffsetOutcome(
            ErrorCode.NONE, position.offset, position.timestamp_ms, position.leader_epoch
        )

    def end_of_epoch(
        self, leader_epoch: LeaderEpoch, *, current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    ) -> OffsetOutcome:
        """Return the greatest epoch in the leader's log that is not above `leader_epoch`, and its end offset as
        `offset` (OffsetsForLeaderEpoch).
        """
        host = self.host
        if not host.is_leader:
            return _NOT_LEADER
        own = host.replica.leader_epoch
        if 0 <= current_leader_epoch < own:
            return OffsetOutcome(ErrorCode.FENCED_LEADER_EPOCH)
        if current_leader_epoch > own:
            return OffsetOutcome(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.may_respond(own):
            return _NOT_LEADER
        if leader_epoch > own:
            return OffsetOutcome(ErrorCode.NONE)
        epoch, end = host.log.epochs.end_of(leader_epoch, host.log.log_end_offset)
        return OffsetOutcome(ErrorCode.NONE, end, -1, epoch)

    async def delete_records(self, before_offset: Offset, *, timeout_ms: int) -> OffsetOutcome:
        """Raise the log start offset at the leader (-1: to the high watermark), and wait until all replicas that are
        live or may be elected have raised theirs.

        The outcome's `offset` is the lowest log start offset of these replicas. After REQUEST_TIMED_OUT the records may
        still be deleted later.
        """
        host = self.host
        if not host.is_leader or not self.may_respond(host.replica.leader_epoch):
            return _NOT_LEADER
        if host.log.config.cleanup_compact and not host.log.config.cleanup_delete:
            return OffsetOutcome(ErrorCode.POLICY_VIOLATION)
        done: asyncio.Future[OffsetOutcome] = asyncio.get_running_loop().create_future()
        host.delete_records(
            before_offset,
            timeout_ms=timeout_ms,
            on_done=lambda outcome: None if done.done() else done.set_result(outcome),
        )
        outcome = await done
        if self.host.is_removed:
            return OffsetOutcome(self._removed())
        if outcome.error is ErrorCode.NONE and not self.may_respond(outcome.leader_epoch):
            return _NOT_LEADER
        return outcome

    def producers(self) -> Mapping[ProducerId, ProducerEntry] | ErrorCode:
        """Return the state of each producer in the leader's log, or an error if this broker is not the leader."""
        host = self.host
        if not host.is_leader or not self.may_respond(host.replica.leader_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return host.log.producers.entries()

    def gate_produce(self, outcome: ProduceOutcome, *, acks: int) -> ProduceOutcome:
        """Return the outcome of a produce with these `acks` if it may still be sent, else NOT_LEADER_OR_FOLLOWER.

        A removed replica refuses its waiting requests with UNKNOWN_TOPIC_ID. Clients get the error that says whether
        the topic was deleted or the replica moved, as from Kafka; librdkafka gives up records that were refused with
        UNKNOWN_TOPIC_ID.
        """
        if outcome.error is ErrorCode.UNKNOWN_TOPIC_ID and self.host.is_removed:
            return ProduceOutcome(self._removed())
        if outcome.error is not _NONE or self.may_respond(
            outcome.leader_epoch,
            is_replicated=acks == _ACKS_ALL and self._rules.acks_all_without_controller,
        ):
            return outcome
        return ProduceOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def gate_read(self, outcome: ReadOutcome) -> ReadOutcome:
        """Return the outcome of a read if it may still be sent, else an error, as `gate_produce` does."""
        if outcome.error is ErrorCode.UNKNOWN_TOPIC_ID and self.host.is_removed:
            return ReadOutcome(self._removed())
        if outcome.error is not ErrorCode.NONE or self.may_respond(outcome.leader_epoch):
            return outcome
        return ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def may_respond(self, leader_epoch: LeaderEpoch, *, is_replicated: bool = False) -> bool:
        """Return whether a response that was made in that leader epoch may be sent now.

        `is_replicated` means that all in-sync replicas have what the response contains, so that it may be sent without
        a lease.
        """
        host, rules = self.host, self._rules
        return not host.is_removed and host.replica.may_respond(
            leader_epoch,
            lease_until_ms=rules.lease.until_ms,
            now_ms=rules.table.clock.boottime_ms(),
            is_replicated=is_replicated,
        )

    @property
    def can_write(self) -> bool:
        """Whether this broker leads the partition, with enough in-sync replicas for a write with acks=all."""
        return self.host.is_leader and not self.host.replica.is_under_min_isr

    @property
    def log_end(self) -> Offset:
        """The log end offset, which includes records that are not committed."""
        return self.host.replica.log_end

    def _removed(self) -> ErrorCode:
        """Return the error for a request to a replica that was removed."""
        return absence(self._rules.table.image, self._topic, self.host.partition.partition)


def absence(image: MetadataImage, topic: Topic, partition: PartitionIndex) -> ErrorCode:
    """Return the error for a request to a partition of which this broker has no replica."""
    if isinstance(topic, bytes):
        if topic not in image.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic_id: bytes | None = topic
    else:
        topic_id = image.topic_ids.get(topic)
    if topic_id is None or image.partition(TopicId(topic_id), partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
