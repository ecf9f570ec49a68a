"""The leader's end of a replication stream: what it sends, in which order, and when it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from odradek_broker.log.log_reads import OffsetOutOfRange, ReadResult
from odradek_broker.partition.effects import DataDue, SendAttached
from odradek_broker.partition.events import DataSent, FollowerSession
from odradek_broker.replication.counters import Counters
from odradek_broker.replication.streams.leader_stream import LeaderStream
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb

WAIT_S_MAX = 30.0
SESSION = FollowerSession(broker_id=BrokerId(2), broker_epoch=BrokerEpoch(1), session_id=1)


class Log:
    """A log of records of 100 bytes each."""

    start = 0
    is_hot = True
    letter = b"a"

    def plan_read(self, offset: int, *, bytes_max: int, end_offset: int, **_: Any) -> Any:
        if offset < self.start:
            raise OffsetOutOfRange(str(offset))
        count = max(1, min(end_offset - offset, bytes_max // 100))
        return Plan(self, offset, count)


class Plan:
    def __init__(self, log: Log, offset: int, count: int) -> None:
        self.is_hot = log.is_hot
        self._result = ReadResult(
            [log.letter * 100] * count, Offset(offset), Offset(offset + count), 100 * count
        )

    def run(self) -> ReadResult:
        return self._result


class Host:
    """A replica that leads, as far as a stream uses it; it also takes the replica's decisions."""

    def __init__(self, index: int) -> None:
        self.partition = TopicIdPartition(TopicId(bytes(16)), PartitionIndex(index))
        self.log = Log()
        self.replica = self
        self.sent_to = 0
        self.sent_watermark = 0
        self.log_end = 0
        self.watermark = 0
        self.leader_epoch = 1
        self.steps: list[object] = []

    def data_due(self, session: FollowerSession) -> DataDue | None:
        if self.sent_to == self.log_end and self.sent_watermark == self.watermark:
            return None
        return DataDue(
            Offset(self.sent_to),
            Offset(self.log_end),
            Offset(self.watermark),
            Offset(self.log.start),
            LeaderEpoch(self.leader_epoch),
        )

    def step(self, event: object) -> None:
        self.steps.append(event)
        if isinstance(event, DataSent):
            self.sent_to = event.end_offset
            self.sent_watermark = event.high_watermark

    def detached(self, session: FollowerSession) -> None:
        self.steps.append("detached")

    def session_closed(self, session: FollowerSession) -> None:
        self.steps.append("closed")


class Pool:
    """Disk threads whose reads end when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def run(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        self.jobs.append((work, done))

    def finish(self) -> None:
        for part in self.jobs.pop(0):
            part()


class Shared:
    counters = Counters()

    def __init__(self) -> None:
        self.pool = Pool()


def _stream(
    *, credit_bytes: int = 1 << 20, partition_bytes_max: int = 500, shared: Shared | None = None
) -> LeaderStream:
    return LeaderStream(
        SESSION,
        shared=shared or Shared(),  # type: ignore[arg-type]  # all that reads need
        credit_bytes=credit_bytes,
        partition_bytes_max=partition_bytes_max,
        message_bytes_max=1000,
    )


async def _next(stream: LeaderStream) -> Sequence[pb.LeaderMessage]:
    data = await asyncio.wait_for(stream.next_message(), WAIT_S_MAX)
    return list(pb.ReplicateResponse.FromString(data).messages)


def _attach(stream: LeaderStream, host: Host) -> None:
    effect = SendAttached(
        session=SESSION,
        attach_seq=4,
        leader_epoch=LeaderEpoch(host.leader_epoch),
        high_watermark=Offset(0),
        log_start=Offset(0),
    )
    stream.send(host, effect)  # type: ignore[arg-type]


async def test_one_message_takes_all_that_came_meanwhile_in_turns() -> None:
    stream = _stream()
    first, second = Host(0), Host(1)
    first.log_end, second.log_end = 12, 3
    for host in (first, second):
        stream.mark_due(host)  # type: ignore[arg-type]
    told = [(m.partition.partition, m.data.base_offset) for m in await _next(stream)]
    assert told == [(0, 0), (1, 0)]  # 500 bytes a turn, 1000 a message
    told = [(m.partition.partition, m.data.base_offset) for m in await _next(stream)]
    assert told == [(0, 5)]
    assert len((await _next(stream))[0].data.records) == 200


async def test_it_stops_where_the_credit_ends_and_goes_on_with_more() -> None:
    stream = _stream(credit_bytes=500)
    host = Host(0)
    host.log_end = 20
    stream.mark_due(host)  # type: ignore[arg-type]
    assert len(await _next(stream)) == 1
    waiting = asyncio.ensure_future(stream.next_message())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.add_credit(1)
    message = pb.ReplicateResponse.FromString(await asyncio.wait_for(waiting, WAIT_S_MAX)).messages[
        0
    ]
    assert message.data.base_offset == 5


async def test_a_watermark_alone_waits_for_company_and_then_goes() -> None:
    stream = _stream()
    host = Host(0)
    host.watermark = 7
    stream.mark_due(host)  # type: ignore[arg-type]
    began = asyncio.get_running_loop().time()
    (message,) = await _next(stream)
    assert asyncio.get_running_loop().time() - began >= 0.04
    assert message.data.high_watermark == 7
    assert message.data.records == b""


async def test_a_watermark_goes_at_once_with_data_of_another_partition() -> None:
    stream = _stream()
    quiet, busy = Host(0), Host(1)
    quiet.watermark, busy.log_end = 7, 1
    stream.mark_due(quiet)  # type: ignore[arg-type]
    stream.mark_due(busy)  # type: ignore[arg-type]
    told = {m.partition.partition: m.data for m in await _next(stream)}
    assert told[0].high_watermark == 7
    assert told[1].records


async def test_answers_to_attaches_come_before_data() -> None:
    stream = _stream()
    host = Host(0)
    host.log_end = 1
    stream.mark_due(host)  # type: ignore[arg-type]
    _attach(stream, host)
    kinds = [m.WhichOneof("message") for m in await _next(stream)]
    assert kinds == ["attached", "data"]


async def test_a_follower_that_retention_overtook_is_told_to_compare_again() -> None:
    stream = _stream()
    host = Host(0)
    host.log_end, host.log.start = 20, 10
    stream.mark_due(host)  # type: ignore[arg-type]
    (message,) = await _next(stream)
    assert message.WhichOneof("message") == "refused"
    assert message.refused.attach_seq == 0
    assert "detached" in host.steps


async def test_what_was_read_in_an_earlier_epoch_is_not_sent_in_a_later_one() -> None:
    shared = Shared()
    stream = _stream(shared=shared)
    host = Host(0)
    host.log_end, host.log.is_hot = 1, False
    _attach(stream, host)
    stream.mark_due(host)  # type: ignore[arg-type]
    assert [m.WhichOneof("message") for m in await _next(stream)] == ["attached"]
    late = shared.pool.jobs[0]  # a read that the disk is slow to answer
    stream.forget(host)  # type: ignore[arg-type]  # another led, and our log was cut and refilled
    host.leader_epoch, host.log.letter = 3, b"b"
    _attach(stream, host)
    late[0]()
    late[1]()
    shared.pool.jobs.clear()
    stream.mark_due(host)  # type: ignore[arg-type]
    assert [m.WhichOneof("message") for m in await _next(stream)] == ["attached"]
    shared.pool.finish()
    (message,) = await _next(stream)
    assert (message.leader_epoch, message.data.records) == (3, b"b" * 100)


async def test_the_end_of_the_stream_is_told_to_all_that_were_attached() -> None:
    stream = _stream()
    host = Host(0)
    _attach(stream, host)
    stream.close()
    assert host.steps == ["closed"]


async def test_a_follower_that_lacks_something_of_everything_is_read_ahead_for_by_little() -> None:
    """Otherwise a leader of a thousand partitions would keep a megabyte of each of them in memory
    at once.
    """
    shared = Shared()
    stream = _stream(shared=shared)
    hosts = [Host(index) for index in range(40)]
    for host in hosts:
        host.log_end, host.log.is_hot = 7, False  # 700 bytes: two turns
        _attach(stream, host)
        stream.mark_due(host)  # type: ignore[arg-type]
    assert len(await _next(stream)) == len(hosts)
    hosts[3].log_end = hosts[5].log_end = 0  # what was to be read is not wanted any more
    stream.forget(hosts[4])  # type: ignore[arg-type]
    received: dict[int, int] = {}
    read_ahead_most = 0
    for _ in range(200):
        waiting = asyncio.ensure_future(stream.next_message())
        while not waiting.done():
            for _ in range(3):
                await asyncio.sleep(0)
            read_ahead_most = max(read_ahead_most, len(shared.pool.jobs))
            if shared.pool.jobs:
                shared.pool.finish()
            elif not waiting.done():
                break
        if not waiting.done():
            waiting.cancel()
            break
        for message in pb.ReplicateResponse.FromString(waiting.result()).messages:
            index = message.partition.partition
            received[index] = received.get(index, 0) + len(message.data.records)
    assert received == {index: 700 for index in range(40) if index not in (3, 4, 5)}
    assert 1 < read_ahead_most <= 4, "two messages of 1,000 bytes, in pieces of 500"
    assert stream._cold_total_bytes == 0
