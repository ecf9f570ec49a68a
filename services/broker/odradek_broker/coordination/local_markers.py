"""Writes transaction markers to partitions that this broker leads, for the coordinators on all brokers.

All markers of one iteration of the event loop for a partition become one append. An iteration writes to at most
`PARTITIONS_AT_ONCE` partitions, so that a transaction with thousands of partitions does not block the event loop.
Markers for `__consumer_offsets` go through the group coordinator, because they commit or discard pending offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.groups.messages import EndInTransaction
from odradek_broker.partition.events import Marker
from odradek_broker.partition.marker_writes import CoordinatorEpochs
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.replication.partition import Partition
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import (
    LeaderEpoch,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.topic_names import OFFSETS_TOPIC
from odradek_runtime.logs import event_log

_TIMEOUT_MS: Final = 15_000
PARTITIONS_AT_ONCE: Final = 50
"""The maximum number of partitions to which one iteration of the event loop writes. An append takes 100 to 150 us."""
_log = event_log(__name__)
OnWritten = Callable[[ErrorCode], None]


class LocalMarkers:
    """Writes markers to this broker's partitions."""

    def __init__(
        self,
        *,
        partitions: LocalPartitions,
        groups: GroupCoordinator,
        coordinator_epochs: CoordinatorEpochs,
    ) -> None:
        self._partitions = partitions
        self._groups = groups
        self._coordinator_epochs = coordinator_epochs
        self._due: dict[PartitionHost, tuple[Partition, list[tuple[Marker, OnWritten]]]] = {}
        self._is_write_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    def write(
        self,
        target: TopicIdPartition,
        leader_epoch: LeaderEpoch,
        marker: Marker,
        on_done: OnWritten,
    ) -> None:
        """Write a marker if this broker leads the partition in this leader epoch.

        `on_done` is called once, in a later iteration of the event loop, with an error code. NONE means that the marker
        is committed.
        """
        loop = asyncio.get_running_loop()
        partition = self._partitions.find(target.topic_id, target.partition)
        if isinstance(partition, ErrorCode):
            loop.call_soon(on_done, partition)
        elif not partition.host.is_leader or partition.host.replica.leader_epoch != leader_epoch:
            loop.call_soon(on_done, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif partition.host.topic == OFFSETS_TOPIC:
            task = loop.create_task(
                self._write_to_group(target.partition, leader_epoch, marker, on_done)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            if not self._is_write_due:
                self._is_write_due = True
                loop.call_soon(self._write_due)
            self._due.setdefault(partition.host, (partition, []))[1].append((marker, on_done))

    async def respond(self, entry: pb.MarkEntry) -> pb.MarkResult:
        """Write a marker that the coordinator on another broker sent, and return the result for that broker."""
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.write(
            TopicIdPartition(
                TopicId(entry.partition.topic_id), PartitionIndex(entry.partition.partition)
            ),
            LeaderEpoch(entry.leader_epoch),
            Marker(
                ProducerId(entry.producer_id),
                ProducerEpoch(entry.producer_epoch),
                entry.is_commit,
                PartitionIndex(entry.coordinator_partition),
                LeaderEpoch(entry.coordinator_epoch),
                entry.is_bumped,
            ),
            lambda code: None if written.done() else written.set_result(code),
        )
        return pb.MarkResult(entry_id=entry.entry_id, error_code=await written)

    def _write_due(self) -> None:
        for host in list(islice(self._due, PARTITIONS_AT_ONCE)):
            partition, markers = self._due.pop(host)
            partition.write_markers(
                [marker for marker, _ in markers],
                timeout_ms=_TIMEOUT_MS,
                on_done=_each([on_done for _, on_done in markers]),
            )
        self._is_write_due = bool(self._due)
        if self._is_write_due:
            asyncio.get_running_loop().call_soon(self._write_due)

    async def _write_to_group(
        self,
        partition: PartitionIndex,
        leader_epoch: LeaderEpoch,
        marker: Marker,
        on_done: OnWritten,
    ) -> None:
        if not self._coordinator_epochs.heard(
            marker.coordinator_partition, marker.coordinator_epoch
        ):
            on_done(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            return
        end = EndInTransaction(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            is_bumped=marker.is_bumped,
        )
        try:
            code = await self._groups.end_in_transaction(partition, leader_epoch, end)
        except CoordinatorError:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except Exception as error:
            _log.error(
                "Failed to write a transaction marker to __consumer_offsets because of an internal error",
                exc=error,
            )
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        on_done(code)


def _each(on_done: Sequence[OnWritten]) -> Callable[[Sequence[ErrorCode]], None]:
    def written(codes: Sequence[ErrorCode]) -> None:
        for notify, code in zip(on_done, codes, strict=True):
            notify(code)

    return written
