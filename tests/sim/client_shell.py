"""The listener of a simulated broker. It passes requests of simulated clients to the production code's partitions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import OFFSET_LATEST, ProduceOutcome
from odradek_broker.replication.partition import Partition
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import LeaderEpoch, Offset, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.data_directory import values_in
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND, Scheduler

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

FETCH_BYTES_MAX = 800
# The longest time from when a record is readable to the response of the fetch that waits for the record. A slow disk
# delays the response.
WAKE_US_MAX = 1_500 * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceCall:
    """A client's request to produce one encoded batch to one partition."""

    call_id: int
    partition: TopicIdPartition
    records: bytes
    acks: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCall:
    """A client's request for records from `offset` on."""

    call_id: int
    partition: TopicIdPartition
    offset: int
    leader_epoch: int
    last_epoch: int = -1  # leader epoch of the record before `offset`, if the client read it
    last_value: int = -1  # value of that record; only the oracle uses it
    wait_ms: int = 0
    bytes_min: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfEpochCall:
    """A client's OffsetForLeaderEpoch request: at which offset does a leader epoch end?"""

    call_id: int
    partition: TopicIdPartition
    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCall:
    """A client's ListOffsets request: the first offset at or after a timestamp, or the offset that a special
    timestamp such as OFFSET_EARLIEST means.
    """

    call_id: int
    partition: TopicIdPartition
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdCall:
    """A client's InitProducerId request without a transactional id."""

    call_id: int
    partition: TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestCall:
    """A client's request for the end offset of the readable records."""

    call_id: int
    partition: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The response to any request. Clients store `leader` and `leader_epoch`, as the broker knows them."""

    call_id: int
    error_code: ErrorCode
    offset: int = -1
    high_watermark: int = -1
    records: tuple[tuple[int, int], ...] = ()
    log_start: int = -1  # set in responses of fetches that failed, and in responses with an offset
    leader: int = -1
    leader_epoch: int = -1
    last_epoch: int = -1  # leader epoch of the last record, or the epoch that ended
    timestamp_ms: int = -1
    diverges: bool = False  # whether the client has read records that the broker's log lacks


Call = ProduceCall | FetchCall | LatestCall | EndOfEpochCall | TimeCall | ProducerIdCall


class _Arrival:
    """A watcher of a partition. It records when the partition first had a readable record at `offset`."""

    def __init__(self, scheduler: Scheduler, host: PartitionHost, offset: int) -> None:
        self.at_us = -1
        self._scheduler = scheduler
        self._host = host
        self._offset = offset
        host.watchers[self] = None

    def on_partition_moved(self, host: PartitionHost) -> None:
        is_first = self.at_us < 0 and host.is_leader
        if is_first and host.replica.high_watermark > self._offset:
            self.at_us = self._scheduler.now_us

    def close(self) -> None:
        self._host.watchers.pop(self, None)


class ClientShell:
    """The listener of one BrokerProcess for simulated clients."""

    def __init__(self, life: BrokerProcess) -> None:
        self._life = life
        self._scheduler = life.scheduler

    def accept(self, stream: Stream) -> None:
        """Accept a client's connection."""

        def on_message(call: Call) -> None:
            if isinstance(call, ProduceCall):
                self._life.loop.run_here(self._produce, stream, call)
            else:
                self._life.loop.spawn(self._read(stream, call))

        stream.on_message[1] = on_message

    # --- produce ----------------------------------------------------------------------------------

    def _produce(self, stream: Stream, call: ProduceCall) -> None:
        broker = self._life.broker
        if broker is None or not self._life.is_serving:
            self._send(stream, self._refused(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        partition = broker.partitions.find(call.partition.topic_id, call.partition.partition)
        if isinstance(partition, ErrorCode):
            self._life.process.after(
                self._pause_us(), lambda: self._send(stream, self._refused(call, partition))
            )
            return
        partition.produce(
            call.records,
            acks=call.acks,
            timeout_ms=call.timeout_ms,
            on_done=lambda outcome: self._life.process.after(
                self._pause_us(), self._produced, stream, call, partition, outcome
            ),
        )

    def _produced(
        self, stream: Stream, call: ProduceCall, partition: Partition, outcome: ProduceOutcome
    ) -> None:
        """Check the gate (rule R13: the lease is valid and the broker still leads), and send the response."""
        assert self._life.broker is not None
        name, before = call.partition, outcome.error
        outcome = partition.gate_produce(outcome, acks=call.acks)
        if outcome.error is not ErrorCode.NONE:
            self._stopped(before)
            self._send(stream, self._refused(call, outcome.error))
            return
        is_replicated = call.acks == -1 and self._life.cluster.acks_all_without_controller
        self._life.cluster.invariants.answer_leaves(self._life, is_replicated=is_replicated)
        host = self._life.host(name)
        assert host is not None
        self._send(
            stream,
            Response(
                call_id=call.call_id,
                error_code=ErrorCode.NONE,
                offset=outcome.base_offset,
                leader=host.replica.leader,
                leader_epoch=host.replica.leader_epoch,
            ),
        )

    # --- fetch and list ---------------------------------------------------------------------------

    async def _read(self, stream: Stream, call: Call) -> None:
        if self._life.broker is None or not self._life.is_serving:
            self._send(stream, self._refused(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        match call:
            case FetchCall():
                await self.fetch(stream, call)
            case LatestCall():
                await self._offset_at(stream, call, OFFSET_LATEST, call.leader_epoch)
            case TimeCall():
                await self._offset_at(stream, call, call.timestamp_ms, call.leader_epoch)
            case EndOfEpochCall():
                self._end_of_epoch(stream, call)
            case ProducerIdCall():
                await self._producer_id(stream, call)

    async def fetch(self, stream: Stream, call: FetchCall) -> None:
        """Read records, wait for as long as a full socket would delay the response, check the gate (rule R13), and
        respond.
        """
        assert self._life.broker is not None
        name, partitions = call.partition, self._life.broker.partitions
        partition = partitions.find(name.topic_id, name.partition)
        arrival = None
        if call.wait_ms and not isinstance(partition, ErrorCode):
            arrival = _Arrival(self._scheduler, partition.host, call.offset)
        (read,) = await partitions.fetch(
            [
                FetchWant(
                    partition=partition,
                    offset=Offset(call.offset),
                    bytes_max=FETCH_BYTES_MAX,
                    current_leader_epoch=LeaderEpoch(call.leader_epoch),
                    last_fetched_epoch=LeaderEpoch(call.last_epoch),
                )
            ],
            bytes_min=call.bytes_min,
            bytes_max=FETCH_BYTES_MAX,
            wait_ms_max=call.wait_ms,
            read_committed=False,
        )
        if arrival is not None:
            self._woken(call, arrival, has_records=read.size_bytes > 0)
        await asyncio.sleep(self._pause_us() / SECOND)
        before = read.error
        if not isinstance(partition, ErrorCode):
            read = partition.gate_read(read)
        if read.error is not ErrorCode.NONE:
            self._stopped(before)
            self._send(stream, self._refused(call, read.error, read.log_start_offset))
            return
        self._life.cluster.invariants.answer_leaves(self._life, is_replicated=False)
        records: list[tuple[int, int]] = []
        try:
            for data in read.records:
                records += values_in(bytes(data))
        except CorruptBatch as error:
            if name not in self._life.node.disk.damage:
                self._life.cluster.invariants.fail(
                    "P13", f"a client was sent a damaged batch: {error}"
                )
            # A client would find the damage by its own check of the CRC.
            self._scheduler.counters["damaged batches found by clients"] += 1
            self._send(stream, self._refused(call, ErrorCode.CORRUPT_MESSAGE))
            return
        host = self._life.host(name)
        assert host is not None
        records = [record for record in records if record[0] >= call.offset]
        if call.last_value >= 0 and records:
            self._life.cluster.invariants.read_goes_on(
                self._life, host, call.offset - 1, call.last_value
            )
        self._send(
            stream,
            Response(
                call_id=call.call_id,
                error_code=ErrorCode.NONE,
                offset=call.offset,
                high_watermark=read.high_watermark,
                records=tuple(records),
                leader=host.replica.leader,
                leader_epoch=read.leader_epoch,
                last_epoch=host.log.epochs.at(records[-1][0]) if records else -1,
                diverges=read.diverging is not None,
            ),
        )

    def _woken(self, call: FetchCall, arrival: _Arrival, *, has_records: bool) -> None:
        """Check P16: a fetch that waits for records is answered when a record arrives, not when its wait time ends."""
        arrival.close()
        late_us = self._scheduler.now_us - arrival.at_us
        if not has_records or arrival.at_us < 0 or call.bytes_min > 1:
            return
        self._scheduler.counters["waiting fetches woken"] += 1
        was_stopped = self._life.process.stalled_until_us > arrival.at_us
        if late_us > WAKE_US_MAX and not was_stopped:
            self._life.cluster.invariants.fail(
                "P16",
                f"{call.partition}: a fetch waited {late_us // MS} ms although a record was readable",
            )

    async def _producer_id(self, stream: Stream, call: ProducerIdCall) -> None:
        assert self._life.broker is not None
        code, producer_id = await self._life.broker.producer_ids.next()
        self._send(stream, Response(call_id=call.call_id, error_code=code, offset=producer_id))

    def _end_of_epoch(self, stream: Stream, call: EndOfEpochCall) -> None:
        assert self._life.broker is not None
        name = call.partition
        partition = self._life.broker.partitions.find(name.topic_id, name.partition)
        if isinstance(partition, ErrorCode):
            self._send(stream, self._refused(call, partition))
            return
        outcome = partition.end_of_epoch(
            LeaderEpoch(call.epoch), current_leader_epoch=LeaderEpoch(call.leader_epoch)
        )
        if outcome.error is not ErrorCode.NONE:
            self._send(stream, self._refused(call, outcome.error))
            return
        self._life.cluster.invariants.answer_leaves(self._life, is_replicated=False)
        self._send(
            stream,
            Response(
                call_id=call.call_id,
                error_code=ErrorCode.NONE,
                offset=outcome.offset,
                last_epoch=outcome.leader_epoch,
            ),
        )

    async def _offset_at(
        self, stream: Stream, call: LatestCall | TimeCall, timestamp_ms: int, leader_epoch: int
    ) -> None:
        assert self._life.broker is not None
        name = call.partition
        partition = self._life.broker.partitions.find(name.topic_id, name.partition)
        if isinstance(partition, ErrorCode):
            self._send(stream, self._refused(call, partition))
            return
        outcome = await partition.offset_at(
            timestamp_ms, current_leader_epoch=LeaderEpoch(leader_epoch)
        )
        if outcome.error is not ErrorCode.NONE:
            self._send(stream, self._refused(call, outcome.error))
            return
        self._life.cluster.invariants.answer_leaves(self._life, is_replicated=False)
        host = self._life.host(name)
        assert host is not None
        self._send(
            stream,
            Response(
                call_id=call.call_id,
                error_code=ErrorCode.NONE,
                offset=outcome.offset,
                leader=host.replica.leader,
                leader_epoch=outcome.leader_epoch,
                timestamp_ms=outcome.timestamp_ms,
                log_start=host.log.log_start_offset,
            ),
        )

    # --- responses --------------------------------------------------------------------------------

    def _pause_us(self) -> int:
        """Return a random time for which a full socket delays a response."""
        slow = self._scheduler.chance(0.03)
        return self._scheduler.between(10, 80 * MS if slow else 2 * MS)

    def _stopped(self, before: ErrorCode) -> None:
        self._scheduler.counters["responses stopped at the gate"] += before is ErrorCode.NONE

    def _refused(self, call: Call, error_code: ErrorCode, log_start: int = -1) -> Response:
        broker, name = self._life.broker, call.partition
        if broker is None:
            return Response(call_id=call.call_id, error_code=error_code, log_start=log_start)
        now = broker.partitions.leader_of(name.topic_id, name.partition)
        return Response(
            call_id=call.call_id,
            error_code=error_code,
            log_start=log_start,
            leader=now.broker_id,
            leader_epoch=now.leader_epoch,
        )

    def _send(self, stream: Stream, response: Response) -> None:
        stream.send(self._life.process, response)
