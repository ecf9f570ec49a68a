"""The leader's end of one follower's stream: answers to its attaches, then what it lacks.

One message is under way at a time; the next takes everything that was appended meanwhile, so a
busy leader sends few large messages. Within a message partitions take turns with at most
`partition_bytes_max` each. Bytes on the way are bounded by the follower's credit. A high watermark
without data waits up to 50 ms for company (R9).

What the disk has to be asked for is read ahead for two messages at most: a follower that comes back
wants something of every partition at once, and gets it in its own time.
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
    """Bytes that the pool read. A log may be cut between two epochs, so they belong to one."""

    leader_epoch: LeaderEpoch
    from_offset: Offset
    result: ReadResult

    def suits(self, due: DataDue) -> bool:
        """Whether these are the bytes that are due now."""
        return (
            self.leader_epoch == due.leader_epoch
            and self.from_offset == due.from_offset
            and self.result.size_bytes > 0
        )


class LeaderStream:
    """What goes to one follower in one lane. The servicer's task takes messages out."""

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
        self.hosts: dict[PartitionHost, None] = {}  # attached in this session
        self.is_closed = False
        self._shared = shared
        self._credit_bytes = credit_bytes
        self._partition_bytes_max = partition_bytes_max
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._answers: list[pb.LeaderMessage] = []
        self._due: dict[PartitionHost, None] = {}
        self._watermark_due: dict[PartitionHost, None] = {}
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._is_watermark_time = False
        self._reading: set[PartitionHost] = set()
        self._read: dict[PartitionHost, _ColdRead] = {}
        self._cold_bytes: dict[PartitionHost, int] = {}  # asked of the disk, or held in `_read`
        self._cold_total_bytes = 0
        self._cold_waiting: dict[PartitionHost, None] = {}  # until some of that was sent

    # --- from hosts ------------------------------------------------------------------------------

    def send(self, host: PartitionHost, effect: Effect) -> None:
        """Answer an attach: from now on batches are pushed in this stream, or no longer."""
        if isinstance(effect, fx.SendAttached):
            self.hosts[host] = None
        else:
            self.forget(host)
        self._answers.append(_answer(host, effect))
        self._wake.set()

    def refuse(
        self,
        partition: common_pb2.TopicIdPartition,
        *,
        attach_seq: int,
        leader_epoch: int,
        code: ErrorCode,
    ) -> None:
        """Answer an attach of a partition that has no replica here."""
        message = pb.LeaderMessage(partition=partition, leader_epoch=leader_epoch)
        message.refused.attach_seq = attach_seq
        message.refused.error_code = code
        self._answers.append(message)
        self._wake.set()

    def mark_due(self, host: PartitionHost) -> None:
        """There may be something to push; looked at in the next turn of the loop."""
        self._due[host] = None
        self._wake.set()

    def forget(self, host: PartitionHost) -> None:
        """Push nothing of this host any more; its answers still go out."""
        self.hosts.pop(host, None)
        self._due.pop(host, None)
        self._watermark_due.pop(host, None)
        self._cold_waiting.pop(host, None)
        self._take_cold(host)

    # --- from the servicer -----------------------------------------------------------------------

    def add_credit(self, credit_bytes: int) -> None:
        """The follower takes so many bytes more."""
        self._credit_bytes += credit_bytes
        if self._due:
            self._wake.set()

    async def next_message(self) -> bytes:
        """Wait until there is something to send: a ReplicateResponse, encoded."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            message = self._build()
            if message is not None:
                self._wake.set()  # there may be more than went into one message
                return message

    def close(self) -> None:
        """The stream is gone."""
        self.is_closed = True
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        hosts, self.hosts = self.hosts, {}
        for host in hosts:
            host.session_closed(self.session)

    # --- building --------------------------------------------------------------------------------

    def _build(self) -> bytes | None:
        messages = ReplicateResponseBytes()
        answers, self._answers = self._answers, []
        for answer in answers:
            messages.add(answer)
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
                self._due[host] = None  # at the end of the round
            self._sent(host, result.end_offset, due)
        if self._watermark_due and (not messages.is_empty or self._is_watermark_time):
            self._add_watermarks(messages)
        elif self._watermark_due and self._watermark_timer is None:
            self._watermark_timer = self._loop.call_later(WATERMARK_DELAY_S, self._watermark_time)
        if self._cold_waiting and self._cold_reads_left() > 0:
            self._wake.set()  # those admitted did not want it after all
        return None if messages.is_empty else messages.encode()

    def _admit_cold(self) -> None:
        """Let as many as may be read ahead have their turn."""
        left = self._cold_reads_left()
        for host in list(itertools.islice(self._cold_waiting, max(left, 0))):
            del self._cold_waiting[host]
            self._due[host] = None

    def _take(self, host: PartitionHost, due: DataDue, room_bytes: int) -> ReadResult | None:
        """The next batches; None while they are read in the pool (or are gone)."""
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
                verify=True,  # a follower must not be the first to see a broken disk
            )
            if plan.is_hot:
                result = plan.run()
                if result.size_bytes:
                    return result
                self._loop.call_later(_REREAD_DELAY_S, self.mark_due, host)
                return None
        except OffsetOutOfRange:  # retention overtook the follower: it is to compare again
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
        except Exception as error:  # the stream has other partitions too
            host.found_bug(error)
            return None
        if self._cold_reads_left() > 0:
            self._count_cold(host, bytes_max)
            self._read_cold(host, plan, due)
        else:
            self._cold_waiting[host] = None
        return None

    def _take_cold(self, host: PartitionHost) -> _ColdRead | None:
        """What the pool has read of it; no longer held here."""
        cold = self._read.pop(host, None)
        if cold is not None:
            self._count_cold(host, 0)
        return cold

    def _cold_reads_left(self) -> int:
        """So many more partitions may be read ahead now, at most."""
        left_bytes = _COLD_MESSAGES_MAX * self._message_bytes_max - self._cold_total_bytes
        return -(-left_bytes // self._partition_bytes_max)

    def _count_cold(self, host: PartitionHost, size_bytes: int) -> None:
        """So much is read for it, or held; 0: no longer."""
        self._cold_total_bytes += size_bytes - self._cold_bytes.pop(host, 0)
        if size_bytes:
            self._cold_bytes[host] = size_bytes
        self._wake.set()  # perhaps it is another one's turn

    def _read_cold(self, host: PartitionHost, plan: ReadPlan, due: DataDue) -> None:
        self._reading.add(host)
        found: list[ReadResult] = []
        failures: list[StorageFailed] = []
        bugs: list[Exception] = []

        def work() -> None:
            try:
                found.append(plan.run())
            except StorageFailed as failure:
                failures.append(failure)
            except Exception as error:
                bugs.append(error)

        def done() -> None:
            self._reading.discard(host)
            is_wanted = bool(found) and not self.is_closed and host in self.hosts
            self._count_cold(host, found[0].size_bytes if is_wanted else 0)
            if failures:
                self._refused_read(host, failures[0])
            elif bugs:
                host.found_bug(bugs[0])
            elif is_wanted and found[0].size_bytes:
                self._read[host] = _ColdRead(due.leader_epoch, due.from_offset, found[0])
                self.mark_due(host)
            elif is_wanted:  # its segment left the log, or nothing lies there
                self._loop.call_later(_REREAD_DELAY_S, self.mark_due, host)

        self._shared.counters.fetch_reads_cold += 1
        self._shared.pool.run(work, done)

    def _refused_read(self, host: PartitionHost, failure: StorageFailed) -> None:
        host.read_failed(failure)
        if isinstance(failure, StorageRefused) and not isinstance(
            failure, LogDamaged
        ):  # the disk is not at fault: read again
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


def _answer(host: PartitionHost, effect: Effect) -> pb.LeaderMessage:
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
