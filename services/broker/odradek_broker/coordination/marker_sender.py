"""Sends the markers of decided transactions to the leaders of their partitions, until each leader has acknowledged.

A marker is sent to the partition's leader in the metadata image, over a stream or, if this broker is the leader,
directly. The leader's response is handled as follows:

    acknowledged   NONE. Also INVALID_PRODUCER_EPOCH, because a higher epoch in the partition means that the marker of
                   this decision, or of a later one of the same producer, has already been written to the partition.
    fenced         TRANSACTION_COORDINATOR_FENCED. Another broker has become the coordinator, so the shard is closed.
    retried        Any other code, or no response because the stream broke. The marker is sent again after 50 ms to 1 s,
                   or at once when the image has another leader or leader epoch of the partition.

If a partition has no leader, its markers wait until there is one. A partition is treated as deleted only if the image
does not contain its topic id. The image cannot be too old for that: it made this broker the coordinator, so it is not
older than any image with which the partition was added to a transaction.

A marker contains the leader epoch of the partition to which it is sent. When the leader changes, the marker is sent to
the new leader at once. The copy for the previous leader may arrive late. A broker refuses this copy unless it still
leads the partition in the leader epoch of the copy; otherwise the copy could end the next transaction of a client that
keeps its producer epoch. To the same leader in the same epoch, a marker is sent again only after a response or after
the stream broke, because a new stream makes the leader discard the messages that still arrive on the broken stream.

A transaction may have thousands of partitions. One iteration of the event loop sends at most `MARKERS_AT_ONCE` markers
of one transaction, and reports at most `MARKERS_AT_ONCE` acknowledgements.

An acknowledgement is ignored if the shard has been closed in the meantime, or if the acknowledgement belongs to an
earlier decision.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from odradek_broker.coordination.peer_streams import PeerStreams
from odradek_broker.partition.events import Marker
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.transactions.messages import SendMarkers
from odradek_broker.transactions.transaction import TransactionPartition
from odradek_protocol.identity import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_runtime.clock import Clock
from odradek_runtime.logs import event_log

_RETRY_MIN_MS: Final = 50
_RETRY_MAX_MS: Final = 1_000
_RETRY_CHECK_S: Final = 0.05
MARKERS_AT_ONCE: Final = 200
_LOG_INTERVAL_MS: Final = 60_000
_EXPECTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_log = event_log(__name__)

ShardKey = tuple[PartitionIndex, LeaderEpoch]
"""Identifies a shard of the transaction coordinator: its partition of `__transaction_state`, and its leader epoch."""
Acknowledged = tuple[int, TransactionPartition, ErrorCode]
"""The number of a decision, a partition, and an error code. Any code means that the partition needs no marker any
more.
"""
OnMarked = Callable[[PartitionIndex, LeaderEpoch, Sequence[Acknowledged]], None]
LocalMarkers = Callable[[TopicIdPartition, LeaderEpoch, Marker, Callable[[ErrorCode], None]], None]
"""A function that writes a marker to a partition if this broker leads the partition in the given leader epoch."""


@dataclass(slots=True, eq=False)
class _Due:
    """A marker that the partition's leader has not acknowledged."""

    shard: ShardKey
    decision: int
    partition: TransactionPartition
    marker: Marker
    sent_to: tuple[BrokerId, LeaderEpoch] = (NO_BROKER, NO_LEADER_EPOCH)
    attempt: int = 0
    is_under_way: bool = False
    is_over: bool = False
    wait_ms: int = _RETRY_MIN_MS
    retry_at_ms: int = 0

    @property
    def target(self) -> TopicIdPartition:
        return TopicIdPartition(self.partition.topic_id, self.partition.partition)


class MarkerSender:
    """Sends all markers of the transaction coordinator on this broker. Run `run()` in a task group."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        partitions: LocalPartitions,
        streams: PeerStreams[pb.MarkEntry, pb.MarkResult],
        write_here: LocalMarkers,
        on_marked: OnMarked,
        on_fenced: Callable[[PartitionIndex, LeaderEpoch], None],
        clock: Clock,
    ) -> None:
        """`on_marked` is called with the acknowledgements of one shard, at most once in an iteration of the event loop.
        `on_fenced` is called if another broker has become the coordinator of a shard.
        """
        self._broker_id = broker_id
        self._partitions = partitions
        self._streams = streams
        self._write_here = write_here
        self._on_marked = on_marked
        self._on_fenced = on_fenced
        self._now_ms = clock.monotonic_ms
        self._due: dict[ShardKey, dict[_Due, None]] = {}
        self._acknowledged: deque[tuple[ShardKey, Acknowledged]] = deque()
        self._wake = asyncio.Event()
        self._logged_ms = -_LOG_INTERVAL_MS

    def __len__(self) -> int:
        """Return the number of markers that have not been acknowledged."""
        return sum(map(len, self._due.values()))

    async def run(self) -> None:
        """Retry markers that were not acknowledged, until cancelled."""
        unwatch = self._partitions.watch_image(self._image_changed)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_CHECK_S if len(self) else None):
                        await self._wake.wait()
                self._wake.clear()
                await self._send_due()
        finally:
            unwatch()

    async def _send_due(self) -> None:
        now_ms = self._now_ms()
        waiting = [d for d in self._all() if not d.is_under_way and d.retry_at_ms <= now_ms]
        for start in range(0, len(waiting), MARKERS_AT_ONCE):
            for due in waiting[start : start + MARKERS_AT_ONCE]:
                if not due.is_under_way:
                    self._send(due)
            await asyncio.sleep(0)

    def send(
        self, partition: PartitionIndex, leader_epoch: LeaderEpoch, order: SendMarkers
    ) -> None:
        """Send the markers of a committed decision."""
        dues = self._due.setdefault((partition, leader_epoch), {})
        marker = Marker(
            order.producer_id,
            order.marker_epoch,
            order.is_commit,
            partition,
            leader_epoch,
            order.is_bumped,
        )
        new = [
            _Due((partition, leader_epoch), order.decision, target, marker)
            for target in sorted(order.partitions)  # a fixed order keeps simulations deterministic
        ]
        if not len(self):
            # Wake `run`, which waits without a timeout while all markers are acknowledged.
            self._wake.set()
        dues.update(dict.fromkeys(new))
        self._send_soon(new)

    def _send_soon(self, dues: Sequence[_Due]) -> None:
        """Send the first `MARKERS_AT_ONCE` markers now. `run` sends the others."""
        for due in dues[MARKERS_AT_ONCE:]:
            due.is_under_way, due.retry_at_ms = False, 0
            self._wake.set()
        for due in dues[:MARKERS_AT_ONCE]:
            self._send(due)

    def closed(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        """Discard the markers of a shard that has been closed on this broker."""
        shard = (partition, leader_epoch)
        self._acknowledged = deque(item for item in self._acknowledged if item[0] != shard)
        for due in self._due.pop(shard, {}):
            due.is_over = True

    def _all(self) -> Sequence[_Due]:
        return [due for dues in self._due.values() for due in dues]

    def _image_changed(self, image: MetadataImage) -> None:
        moved = []
        for due in self._all():
            state = image.partition(due.partition.topic_id, due.partition.partition)
            if state is None or (state.leader, state.leader_epoch) != due.sent_to:
                moved.append(due)
        self._send_soon(moved)

    def _send(self, due: _Due) -> None:
        if due.is_over:
            return
        image, target = self._partitions.image, due.target
        if target.topic_id not in image.topics:
            self._settle(due, ErrorCode.UNKNOWN_TOPIC_ID)
            return
        state = image.partition(target.topic_id, target.partition)
        leader = NO_BROKER if state is None else state.leader
        leader_epoch = NO_LEADER_EPOCH if state is None else LeaderEpoch(state.leader_epoch)
        due.sent_to = (leader, leader_epoch)
        due.attempt += 1
        attempt = due.attempt
        if leader == NO_BROKER:
            self._retry(due, None)
            return
        due.is_under_way = True
        if leader == self._broker_id:
            self._write_here(
                target,
                leader_epoch,
                due.marker,
                lambda code: self._responded(due, attempt, code),
            )
            return
        marker = due.marker
        self._streams.send(
            leader,
            pb.MarkEntry(
                partition=common_pb2.TopicIdPartition(
                    topic_id=target.topic_id, partition=target.partition
                ),
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                is_commit=marker.is_commit,
                coordinator_partition=marker.coordinator_partition,
                coordinator_epoch=marker.coordinator_epoch,
                is_bumped=marker.is_bumped,
                leader_epoch=leader_epoch,
            ),
            lambda result: self._responded(
                due,
                attempt,
                ErrorCode.NETWORK_EXCEPTION
                if result is None
                else ErrorCode.received(result.error_code),
            ),
        )

    def _responded(self, due: _Due, attempt: int, code: ErrorCode) -> None:
        if due.is_over:
            return
        if code is ErrorCode.NONE:
            self._settle(due, code)
        elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
            _log.error(
                "Partition leader refused a transaction marker because the partition has a higher producer epoch",
                partition=str(due.target),
                producer_id=due.marker.producer_id,
                producer_epoch=due.marker.producer_epoch,
            )
            self._settle(due, code)
        elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            _log.warning(
                "Transaction coordinator was fenced: another broker leads its partition",
                partition=due.shard[0],
                leader_epoch=due.shard[1],
            )
            self._on_fenced(*due.shard)
        elif attempt == due.attempt:
            # Errors of earlier attempts are ignored, because the marker has been sent to another leader since.
            self._retry(due, code)

    def _settle(self, due: _Due, code: ErrorCode) -> None:
        due.is_over = True
        self._due[due.shard].pop(due)
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self._report)
        self._acknowledged.append((due.shard, (due.decision, due.partition, code)))

    def _report(self) -> None:
        by_shard: dict[ShardKey, list[Acknowledged]] = {}
        for _ in range(min(len(self._acknowledged), MARKERS_AT_ONCE)):
            shard, acknowledged = self._acknowledged.popleft()
            by_shard.setdefault(shard, []).append(acknowledged)
        if self._acknowledged:
            asyncio.get_running_loop().call_soon(self._report)
        for shard, markers in by_shard.items():
            self._on_marked(*shard, markers)

    def _retry(self, due: _Due, code: ErrorCode | None) -> None:
        now_ms = self._now_ms()
        due.is_under_way = False
        due.retry_at_ms = now_ms + due.wait_ms
        due.wait_ms = min(due.wait_ms * 2, _RETRY_MAX_MS)
        if code is None or code in _EXPECTED or now_ms - self._logged_ms < _LOG_INTERVAL_MS:
            return
        self._logged_ms = now_ms
        _log.error(
            "Partition leader failed to write a transaction marker; retrying",
            partition=str(due.target),
            code=code.name,
            broker=due.sent_to[0],
        )
