"""One client's Fetch stream. The broker sends records of the partitions that the client has added, up to the number of
bytes for which the client has granted credit.

The task of the stream waits until a partition has new records, or the client sends credit or changes the set of
partitions. Then it reads the partitions in turn and sends messages of bounded size. A partition is removed from the set
after an error, or at the end offset that the client has given for it. The replica's lease and role are checked just
before records are sent (rule R13 of partition/README.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor

from odradek_broker.access.quotas import FETCH_RATE, Quotas
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_broker.replication.partition import Partition
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.rpc.callers import Caller, in_turns
from odradek_broker.rpc.intake import call_errors, decoded
from odradek_broker.rpc.metadata_view import leader_hint
from odradek_protocol.access import Operation
from odradek_protocol.identity import (
    NO_BROKER,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import FetchResponseBytes
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.clock import monotonic_ms

MESSAGE_BYTES_DEFAULT: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 32 << 20
PARTITIONS_MAX: Final = 10_000
Context = grpc.aio.ServicerContext[bytes, bytes]
Key = tuple[str, bytes, int]


@dataclass(slots=True)
class _Position:
    """One partition of the stream, and the offset that is read next."""

    topic: TopicName
    topic_id: TopicId | None
    index: PartitionIndex
    partition: Partition | ErrorCode
    offset: Offset
    end_offset: int
    current_leader_epoch: LeaderEpoch
    fetch_id: int
    refusal: str = ""
    """The error text if the caller may not read the topic; otherwise ""."""


class FetchStream:
    """Serves one Fetch stream until the client ends it."""

    def __init__(
        self, partitions: LocalPartitions, caller: Caller, quotas: Quotas, context: Context
    ) -> None:
        self._partitions = partitions
        self._quotas = quotas
        self._caller = caller
        self._context = context
        self._settings = pb.FetchSettings()
        self._message_bytes_max = MESSAGE_BYTES_DEFAULT
        self._positions: dict[Key, _Position] = {}
        self._due: dict[Key, None] = {}
        self._keys_of_host: dict[PartitionHost, set[Key]] = {}
        self._credit_bytes = 0
        self._wake = asyncio.Event()
        self._gathered: list[tuple[_Position, ReadOutcome, bool]] = []
        self._gathered_bytes = 0
        self._gathered_at_ms = 0

    async def serve(self) -> None:
        """Read the client's requests and send records, until the client ends the stream."""
        try:
            with call_errors():
                async with asyncio.TaskGroup() as group:
                    pusher = group.create_task(self._push())
                    while True:
                        data: object = await self._context.read()
                        if data is grpc.aio.EOF:
                            break
                        assert isinstance(data, bytes), type(data)
                        self._caller.got_message(len(data))
                        await self._take(await self._decoded(data))
                    pusher.cancel()
        finally:
            for host in self._keys_of_host:
                host.watchers.pop(self, None)

    def on_partition_moved(self, host: PartitionHost) -> None:
        """Read the partition soon, because it may have new records, or its leader may have changed."""
        for key in self._keys_of_host.get(host, ()):
            self._due[key] = None
        self._wake.set()

    async def _decoded(self, data: bytes) -> pb.FetchRequest:
        pace = self._caller.pace
        assert pace is not None, "a client's stream has a pace"
        return await decoded(
            self._context,
            pace,
            data,
            cast("Descriptor", pb.FetchRequest.DESCRIPTOR),
            pb.FetchRequest.FromString,
        )

    async def _take(self, request: pb.FetchRequest) -> None:
        if request.HasField("settings"):
            self._settings = request.settings
            message_bytes_max = request.settings.message_bytes_max or MESSAGE_BYTES_DEFAULT
            self._message_bytes_max = min(max(message_bytes_max, 1), MESSAGE_BYTES_MAX)
        if request.remove:
            removed = {
                (partition.topic, partition.partition)
                async for partition in in_turns(request.remove)
            }
            async for key in in_turns(list(self._positions)):
                if (key[0], key[2]) in removed:
                    self._drop(key)
        async for add in in_turns(request.add):
            key = (add.topic, add.topic_id, add.partition)
            self._drop(key)
            if len(self._positions) >= PARTITIONS_MAX:
                break
            topic, index = TopicName(add.topic), PartitionIndex(add.partition)
            topic_id = TopicId(add.topic_id) if add.topic_id else None
            partition = self._partitions.find(topic_id or topic, index)
            if not isinstance(partition, ErrorCode):
                self._keys_of_host.setdefault(partition.host, set()).add(key)
                partition.host.watchers[self] = None
            self._positions[key] = _Position(
                topic=topic,
                topic_id=topic_id,
                index=index,
                partition=partition,
                offset=Offset(add.offset),
                end_offset=add.end_offset,
                current_leader_epoch=LeaderEpoch(add.current_leader_epoch),
                fetch_id=add.fetch_id,
            )
            self._due[key] = None
        self._credit_bytes += request.credit_bytes
        self._wake.set()

    def _drop(self, key: Key) -> None:
        position = self._positions.pop(key, None)
        self._due.pop(key, None)
        if position is None:
            return
        self._gathered_bytes -= sum(
            out.size_bytes for at, out, _ in self._gathered if at is position
        )
        self._gathered = [entry for entry in self._gathered if entry[0] is not position]
        if not isinstance(position.partition, ErrorCode):
            host = position.partition.host
            keys = self._keys_of_host[host]
            keys.discard(key)
            if not keys:
                del self._keys_of_host[host]
                host.watchers.pop(self, None)

    async def _push(self) -> None:
        while True:
            await self._wait()
            self._wake.clear()
            while self._due and self._credit_bytes > 0:
                await self._gather()
                if not self._is_time_to_send():
                    break
                await self._send()
            if self._gathered and self._is_time_to_send():
                await self._send()

    async def _wait(self) -> None:
        """Wait until a partition may have new records. If records have been gathered but not sent, wait no longer than
        the client's `wait_ms_max`.
        """
        if not self._gathered:
            await self._wake.wait()
            return
        left_ms = self._gathered_at_ms + self._settings.wait_ms_max - monotonic_ms()
        try:
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _is_time_to_send(self) -> bool:
        return bool(self._gathered) and (
            self._gathered_bytes >= self._settings.bytes_min
            or monotonic_ms() >= self._gathered_at_ms + self._settings.wait_ms_max
            or any(
                outcome.error is not ErrorCode.NONE or ended for _, outcome, ended in self._gathered
            )
        )

    async def _gather(self) -> None:
        """Read the partitions that may have new records, until there are enough for a message."""
        for key in list(self._due):
            if self._gathered_bytes >= min(self._message_bytes_max, self._credit_bytes):
                return
            self._due.pop(key, None)
            position = self._positions.get(key)
            if position is None:
                continue
            outcome = await self._read(position)
            if self._positions.get(key) is not position:
                continue  # the partition was removed or added again during the read
            ended = 0 <= position.end_offset <= outcome.next_offset
            if outcome.error is not ErrorCode.NONE or outcome.preferred_read_replica != NO_BROKER:
                self._gathered.append((position, outcome, False))
                self._forget(key)
            elif outcome.size_bytes or ended:
                if not self._gathered:
                    self._gathered_at_ms = monotonic_ms()
                self._gathered.append((position, outcome, ended))
                self._gathered_bytes += outcome.size_bytes
                position.offset = outcome.next_offset
                if ended:
                    self._forget(key)
                else:
                    # Check the partition again after all others, because it may have more records.
                    self._due[key] = None

    async def _read(self, position: _Position) -> ReadOutcome:
        if not self._may_read(position):
            return ReadOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition, settings = position.partition, self._settings
        if isinstance(partition, ErrorCode):
            return ReadOutcome(partition)
        preferred = partition.preferred_replica(settings.rack)
        if preferred is not None:
            return preferred
        outcome = partition.read(
            position.offset,
            bytes_max=self._message_bytes_max - self._gathered_bytes,
            read_committed=settings.read_committed,
            current_leader_epoch=position.current_leader_epoch,
        )
        return outcome if isinstance(outcome, ReadOutcome) else await outcome

    def _may_read(self, position: _Position) -> bool:
        name = position.topic
        if position.topic_id is not None:
            topic = self._partitions.image.topics.get(position.topic_id)
            name = TopicName("") if topic is None else topic.name
        if self._caller.may(Operation.READ, name):
            return True
        position.refusal = self._caller.denied_topic("Fetch", Operation.READ, name, position.topic)
        return False

    def _forget(self, key: Key) -> None:
        """Remove a partition from the stream. Its records that were already read are still sent."""
        gathered = self._gathered
        self._gathered = []
        self._drop(key)
        self._gathered = gathered

    async def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        response = FetchResponseBytes()
        sent_bytes = sum([self._add(response, *entry) for entry in gathered])
        self._credit_bytes -= sent_bytes
        throttle_ms = self._quotas.throttle_ms(
            FETCH_RATE, self._caller.principal, self._caller.client_id, sent_bytes
        )
        await self._context.write(response.encode(throttle_ms=throttle_ms))
        if throttle_ms:  # a client that exceeds its quota is delayed
            await asyncio.sleep(throttle_ms / 1000)

    def _add(
        self, response: FetchResponseBytes, position: _Position, outcome: ReadOutcome, ended: bool
    ) -> int:
        """Add the records that were read from a partition to the response, or an error if the records must not be sent
        now. Return the number of bytes of records.
        """
        partition, gated = position.partition, outcome
        if not isinstance(partition, ErrorCode):
            gated = partition.gate_read(outcome)
        data = pb.FetchPartitionData(
            topic=position.topic,
            partition=position.index,
            error_code=gated.error,
            next_offset=gated.next_offset,
            high_watermark=gated.high_watermark,
            last_stable_offset=gated.last_stable_offset,
            log_start_offset=gated.log_start_offset,
            end_reached=ended and gated.error is ErrorCode.NONE,
            fetch_id=position.fetch_id,
            preferred_read_replica=gated.preferred_read_replica,
        )
        for aborted in gated.aborted or ():
            data.aborted_transactions.add(
                producer_id=aborted.producer_id, first_offset=aborted.first_offset
            )
        if gated.error is not ErrorCode.NONE:
            if gated.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                data.error_message = position.refusal
            leader = self._partitions.leader_of(position.topic_id or position.topic, position.index)
            data.leader.CopyFrom(
                leader_hint(
                    self._partitions.image,
                    leader.broker_id,
                    leader.leader_epoch,
                    self._caller.listener,
                )
            )
            self._drop((position.topic, position.topic_id or b"", position.index))
        response.add(data, gated.records, gated.size_bytes)
        return gated.size_bytes
