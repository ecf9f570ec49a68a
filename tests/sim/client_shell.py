"""The listener of a simulated broker: it passes requests of simulated clients to the production code's partitions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek_broker.replication.local_partitions import FetchWant
from odradek_broker.replication.outcomes import OFFSET_LATEST, ProduceOutcome
from odradek_broker.replication.partition import Partition
from odradek_protocol.identity import LeaderEpoch, Offset, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.data_directory import values_in
from tests.sim.network import Stream
from tests.sim.scheduler import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

FETCH_BYTES_MAX = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceCall:
    """A client's batch for one partition, encoded."""

    call_id: int
    partition: TopicIdPartition
    records: bytes
    acks: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCall:
    """A client wants what follows `offset`."""

    call_id: int
    partition: TopicIdPartition
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestCall:
    """A client wants the end of what is readable."""

    call_id: int
    partition: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response to any request. Clients remember its `leader_epoch`, which is that of the broker's image."""

    call_id: int
    error_code: ErrorCode
    offset: int = -1
    high_watermark: int = -1
    records: tuple[tuple[int, int], ...] = ()
    log_start: int = -1  # with an error of a fetch
    leader: int = -1
    leader_epoch: int = -1


Call = ProduceCall | FetchCall | LatestCall


class ClientShell:
    """Belongs to one BrokerProcess."""

    def __init__(self, life: BrokerProcess) -> None:
        self._life = life
        self._scheduler = life.scheduler

    def accept(self, stream: Stream) -> None:
        """A client's connection."""

        def on_message(call: Call) -> None:
            if isinstance(call, ProduceCall):
                self._life.loop.run_here(self._produce, stream, call)
            else:
                self._life.loop.spawn(self._read(stream, call))

        stream.on_message[1] = on_message

    # --- produce ---------------------------------------------------------------------------------

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
        """R13, where the bytes are handed to the socket."""
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

    # --- fetch and list --------------------------------------------------------------------------

    async def _read(self, stream: Stream, call: FetchCall | LatestCall) -> None:
        if self._life.broker is None or not self._life.is_serving:
            self._send(stream, self._refused(call, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif isinstance(call, FetchCall):
            await self.fetch(stream, call)
        else:
            await self._latest(stream, call)

    async def fetch(self, stream: Stream, call: FetchCall) -> None:
        """Read, wait as a full socket does, pass the gate, respond."""
        assert self._life.broker is not None
        name, partitions = call.partition, self._life.broker.partitions
        partition = partitions.find(name.topic_id, name.partition)
        (read,) = await partitions.fetch(
            [
                FetchWant(
                    partition=partition,
                    offset=Offset(call.offset),
                    bytes_max=FETCH_BYTES_MAX,
                    current_leader_epoch=LeaderEpoch(call.leader_epoch),
                )
            ],
            bytes_min=0,
            bytes_max=FETCH_BYTES_MAX,
            wait_ms_max=0,
            read_committed=False,
        )
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
            self._life.cluster.invariants.fail("P13", f"a damaged batch is served: {error}")
        host = self._life.host(name)
        assert host is not None
        self._send(
            stream,
            Response(
                call_id=call.call_id,
                error_code=ErrorCode.NONE,
                offset=call.offset,
                high_watermark=read.high_watermark,
                records=tuple(record for record in records if record[0] >= call.offset),
                leader=host.replica.leader,
                leader_epoch=read.leader_epoch,
            ),
        )

    async def _latest(self, stream: Stream, call: LatestCall) -> None:
        assert self._life.broker is not None
        name = call.partition
        partition = self._life.broker.partitions.find(name.topic_id, name.partition)
        if isinstance(partition, ErrorCode):
            self._send(stream, self._refused(call, partition))
            return
        outcome = await partition.offset_at(
            OFFSET_LATEST, current_leader_epoch=LeaderEpoch(call.leader_epoch)
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
            ),
        )

    # --- responses -------------------------------------------------------------------------------

    def _pause_us(self) -> int:
        """A full socket takes its time."""
        slow = self._scheduler.chance(0.03)
        return self._scheduler.between(10, 80 * MS if slow else 2 * MS)

    def _stopped(self, before: ErrorCode) -> None:
        self._scheduler.counters["answers stopped at the gate"] += before is ErrorCode.NONE

    def _refused(self, call: Call, error_code: ErrorCode, log_start: int = -1) -> Response:
        state = self._life.image.partition(call.partition.topic_id, call.partition.partition)
        return Response(
            call_id=call.call_id,
            error_code=error_code,
            log_start=log_start,
            leader=state.leader if state is not None else -1,
            leader_epoch=state.leader_epoch if state is not None else -1,
        )

    def _send(self, stream: Stream, response: Response) -> None:
        stream.send(self._life.process, response)
