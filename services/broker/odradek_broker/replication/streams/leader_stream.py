"""The leader's end of one follower's stream: it responds to attaches, then sends the records that the follower lacks.

One message is in flight at a time. The next message has everything that was appended since, so a busy leader sends few
large messages. Within a message partitions take turns with at most `partition_bytes_max` each. The follower's credit
bounds the bytes in flight. If only the high watermark moves, the stream waits up to 50 ms to send it together with
records (rule R9 of partition/README.md).

Records that are not in memory are read from the disk in advance for at most two messages: a follower that returns needs
records of every partition at once, and these must not fill the memory while the follower is slow.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Final

from odradek_broker.log.log_reads import OffsetOutOfRange, ReadPlan, ReadResult
from odradek_broker.log.storage import LogDamaged, StorageFailed, StorageRefused
from odradek_broker.partition import effects as fx
from odradek_broker.partition.effects import DataDue, Effect
from odradek_broker.partition.events import DataSent, FollowerSession
from odradek_broker.replication.host_ports import Surroundings
from odradek_broker.replication.partition_host import PartitionHost
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import ReplicateResponseBytes
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb

WATERMARK_DELAY_S: Final = 0.05
_REREAD_DELAY_S: Final = 0.01
_COLD_MESSAGES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class _ColdRead:
    """Batches that a disk thread has read, because they were not in memory. They are valid in one leader epoch only,
    because a log may be truncated between two epochs.
    """

    leader_epoch: LeaderEpoch
    from_offset: Offset
    result: ReadResult

    def suits(self, due: DataDue) -> bool:
        """Return whether these batches are the ones to send next."""
        return (
            self.leader_epoch == due.leader_epoch
            and self.from_offset == due.from_offset
            and self.result.size_bytes > 0
        )


class LeaderStream:
    """The messages to one follower in one lane. The task that serves the stream calls `next_message`."""

    def __init__(
        self,
        session: FollowerSession,
        *,
        shared: Surroundings[PartitionHost],
        credit_bytes: int,
        partition_bytes_max: int,
        message_bytes_max: int,
    ) -> None:
        self.session = session
        self.hosts: dict[PartitionHost, None] = {}  # the replicas that are attached in this session
        self.is_closed = False
        self._shared = shared
        self._credit_bytes = credit_bytes
        self._partition_bytes_max = partition_bytes_max
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._responses: list[pb.LeaderMessage] = []
        self._due: dict[PartitionHost, None] = {}
        self._watermark_due: dict[PartitionHost, None] = {}
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._is_watermark_time = False
        self._reading: set[PartitionHost] = set()
        self._read: dict[PartitionHost, _ColdRead] = {}
        # For each host, the number of bytes that are being read from the disk, or are in `_read`.
        self._cold_bytes: dict[PartitionHost, int] = {}
        self._cold_total_bytes = 0
        # Hosts that must not read from the disk until bytes that were read before have been sent.
        self._cold_waiting: dict[PartitionHost, None] = {}

    def send(self, host: PartitionHost, effect: Effect) -> None:
        """Send the response to an attach. After SendAttached this stream sends the host's batches. After any other
        response it stops sending them.
        """
        if isinstance(effect, fx.SendAttached):
            self.hosts[host] = None
        else:
            self.forget(host)
        self._responses.append(_leader_message(host, effect))
        self._wake.set()

    def refuse(
        self,
        partition: common_pb2.TopicIdPartition,
        *,
        attach_seq: int,
        leader_epoch: int,
        code: ErrorCode,
    ) -> None:
        """Refuse the attach with this sequence number. With 0, end the present attachment. The follower then attaches
        again.
        """
        message = pb.LeaderMessage(partition=partition, leader_epoch=leader_epoch)
        message.refused.attach_seq = attach_seq
        message.refused.error_code = code
        self._responses.append(message)
        self._wake.set()

    def mark_due(self, host: PartitionHost) -> None:
        """Record that the host may have something to send. The next message is built in a later iteration of the
        event loop.
        """
        self._due[host] = None
        self._wake.set()

    def forget(self, host: PartitionHost) -> None:
        """Stop sending this host's batches. Queued responses to attaches are still sent."""
        self.hosts.pop(host, None)
        self._due.pop(host, None)
        self._watermark_due.pop(host, None)
        self._cold_waiting.pop(host, None)
        self._take_cold(host)

    def add_credit(self, credit_bytes: int) -> None:
        """Allow the stream to send this many more bytes to the follower."""
        self._credit_bytes += credit_bytes
        if self._due:
            self._wake.set()

    async def next_message(self) -> bytes:
        """Wait until there is something to send, and return it as an encoded ReplicateResponse."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = self._build()
            if message is not None:
                # There may be more data than fits into this message.
                self._wake.set()
                return message

    def close(self) -> None:
        """Close the stream, and notify the partition hosts that used it."""
        self.is_closed = True
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        hosts, self.hosts = self.hosts, {}
        for host in hosts:
            host.session_closed(self.session)

    def _build(self) -> bytes | None:
        messages = ReplicateResponseBytes()
        responses, self._responses = self._responses, []
        for response in responses:
            messages.add(response)
        size_bytes = 0
        if self._cold_waiting:
            self._admit_cold()
        for host in list(self._due):
            due = host.replica.data_due(self.session)
            if due is None:
                self._due.pop(host, None)
                self._take_cold(host)
                continue
            if due.from_offset >= due.log_end:
                del self._due[host]
                self._take_cold(host)
                self._watermark_due[host] = None
                continue
            if self._credit_bytes <= 0 or size_bytes >= self._message_bytes_max:
                break
            del self._due[host]
            result = self._take(host, due, self._message_bytes_max - size_bytes)
            if result is None:
                continue
            _add_data(messages, host, due, result)
            size_bytes += result.size_bytes
            self._credit_bytes -= result.size_bytes
            self._shared.counters.replication_bytes_out += result.size_bytes
            self._watermark_due.pop(host, None)
            if result.end_offset < due.log_end:
                # This host goes to the end of the order, so that the others have their turn first.
                self._due[host] = None
            self._sent(host, result.end_offset, due)
        if self._watermark_due and (not messages.is_empty or self._is_watermark_time):
            self._add_watermarks(messages)
        elif self._watermark_due and self._watermark_timer is None:
            self._watermark_timer = self._loop.call_later(WATERMARK_DELAY_S, self._watermark_time)
        if self._cold_waiting and self._cold_reads_left() > 0:
            # The hosts that `_admit_cold` let continue needed no read from the disk, so the next waiting hosts may
            # continue.
            self._wake.set()
        return None if messages.is_empty else messages.encode()

    def _admit_cold(self) -> None:
        """Let waiting hosts continue, as many as may start a cold read now (a read of records that are not
        in memory).
        """
        reads_max = self._cold_reads_left()
        for host in list(itertools.islice(self._cold_waiting, max(reads_max, 0))):
            del self._cold_waiting[host]
            self._due[host] = None

    def _take(self, host: PartitionHost, due: DataDue, room_bytes: int) -> ReadResult | None:
        """Return the next batches of a host. None: they cannot be read, or a disk thread is still reading them."""
        cold = self._take_cold(host)
        if cold is not None and cold.suits(due):
            return cold.result
        if host in self._reading:
            return None
        bytes_max = min(self._partition_bytes_max, room_bytes)
        try:
            plan = host.log.plan_read(
                due.from_offset,
                bytes_max=bytes_max,
                end_offset=due.log_end,
                # The CRCs are checked here, so that damage on this disk is not copied to followers.
                verify=True,
            )
            if plan.is_hot:
                result = plan.run()
                if result.size_bytes:
                    return result
                self._loop.call_later(_REREAD_DELAY_S, self.mark_due, host)
                return None
        except OffsetOutOfRange:
            # Retention has deleted the records that the follower needs next, so the follower must attach again.
            self.refuse(
                _wire(host),
                attach_seq=0,
                leader_epoch=due.leader_epoch,
                code=ErrorCode.OFFSET_OUT_OF_RANGE,
            )
            host.detached(self.session)
            return None
        except StorageFailed as failure:
            self._refused_read(host, failure)
            return None
        except Exception as error:
            # The stream continues for its other partitions.
            host.found_bug(error)
            return None
        if self._cold_reads_left() > 0:
            self._count_cold(host, bytes_max)
            self._read_cold(host, plan, due)
        else:
            self._cold_waiting[host] = None
        return None

    def _take_cold(self, host: PartitionHost) -> _ColdRead | None:
        """Remove and return the batches that a disk thread has read for this host; None if there are none."""
        cold = self._read.pop(host, None)
        if cold is not None:
            self._count_cold(host, 0)
        return cold

    def _cold_reads_left(self) -> int:
        """Return the number of cold reads that may start now."""
        remaining_bytes = _COLD_MESSAGES_MAX * self._message_bytes_max - self._cold_total_bytes
        return -(-remaining_bytes // self._partition_bytes_max)

    def _count_cold(self, host: PartitionHost, size_bytes: int) -> None:
        """Set the number of bytes that are being read or stored for a host."""
        self._cold_total_bytes += size_bytes - self._cold_bytes.pop(host, 0)
        if size_bytes:
            self._cold_bytes[host] = size_bytes
        # Another host may start a cold read now.
        self._wake.set()

    def _read_cold(self, host: PartitionHost, plan: ReadPlan, due: DataDue) -> None:
        self._reading.add(host)
        results: list[ReadResult] = []
        failures: list[StorageFailed] = []
        bugs: list[Exception] = []

        def work() -> None:
            try:
                results.append(plan.run())
            except StorageFailed as failure:
                failures.append(failure)
            except Exception as error:
                bugs.append(error)

        def done() -> None:
            self._reading.discard(host)
            is_wanted = bool(results) and not self.is_closed and host in self.hosts
            self._count_cold(host, results[0].size_bytes if is_wanted else 0)
            if failures:
                self._refused_read(host, failures[0])
            elif bugs:
                host.found_bug(bugs[0])
            elif is_wanted and results[0].size_bytes:
                self._read[host] = _ColdRead(due.leader_epoch, due.from_offset, results[0])
                self.mark_due(host)
            elif is_wanted:
                # The segment was removed from the log during the read, or has no batch at this offset.
                self._loop.call_later(_REREAD_DELAY_S, self.mark_due, host)

        self._shared.counters.fetch_reads_cold += 1
        self._shared.pool.run(work, done)

    def _refused_read(self, host: PartitionHost, failure: StorageFailed) -> None:
        host.read_failed(failure)
        # The disk is not at fault (for example, no file descriptor was free), so the read is tried again.
        if isinstance(failure, StorageRefused) and not isinstance(failure, LogDamaged):
            self._loop.call_later(_REREAD_DELAY_S, self.mark_due, host)

    def _sent(self, host: PartitionHost, end_offset: Offset, due: DataDue) -> None:
        host.step(
            DataSent(session=self.session, end_offset=end_offset, high_watermark=due.high_watermark)
        )

    def _add_watermarks(self, messages: ReplicateResponseBytes) -> None:
        hosts, self._watermark_due = self._watermark_due, {}
        self._is_watermark_time = False
        for host in hosts:
            due = host.replica.data_due(self.session)
            if due is None or host in self._due:
                continue
            _add_data(messages, host, due, None)
            self._sent(host, due.from_offset, due)

    def _watermark_time(self) -> None:
        self._watermark_timer = None
        self._is_watermark_time = True
        self._wake.set()


def _wire(host: PartitionHost) -> common_pb2.TopicIdPartition:
    return common_pb2.TopicIdPartition(
        topic_id=host.partition.topic_id, partition=host.partition.partition
    )


def _named(host: PartitionHost, leader_epoch: int) -> pb.LeaderMessage:
    return pb.LeaderMessage(partition=_wire(host), leader_epoch=leader_epoch)


def _add_data(
    messages: ReplicateResponseBytes, host: PartitionHost, due: DataDue, result: ReadResult | None
) -> None:
    data = pb.LeaderData(
        base_offset=due.from_offset,
        high_watermark=due.high_watermark,
        log_start=due.log_start,
    )
    slices, size_bytes = ((), 0) if result is None else (result.slices, result.size_bytes)
    messages.add_data(_named(host, due.leader_epoch), data, slices, size_bytes)


def _leader_message(host: PartitionHost, effect: Effect) -> pb.LeaderMessage:
    assert isinstance(
        effect, fx.SendAttached | fx.SendDiverged | fx.SendSnapshotless | fx.SendRefused
    ), effect
    message = _named(host, effect.leader_epoch)
    if isinstance(effect, fx.SendAttached):
        message.attached.attach_seq = effect.attach_seq
        message.attached.high_watermark = effect.high_watermark
        message.attached.log_start = effect.log_start
    elif isinstance(effect, fx.SendDiverged):
        message.diverged.attach_seq = effect.attach_seq
        message.diverged.for_log_end = effect.for_log_end
        message.diverged.for_last_epoch = effect.for_last_epoch
        message.diverged.epoch = effect.epoch
        message.diverged.end_offset = effect.end_offset
    elif isinstance(effect, fx.SendSnapshotless):
        message.snapshotless.attach_seq = effect.attach_seq
        message.snapshotless.log_start = effect.log_start
    else:
        message.refused.attach_seq = effect.attach_seq
        message.refused.error_code = effect.error_code
    return message
