"""The fetch stream of an in-memory broker: pushes what there is, within the client's credit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from odradek.partitions import TopicPartition
from odradek.testing.memory_cluster import MemoryCluster, MemoryPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

Find = Callable[[MemoryCluster, int, str, int, int], tuple[ErrorCode, MemoryPartition | None]]
MESSAGE_BYTES_MAX = 1 << 20


class _Session:
    """What one stream wants."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, pb.FetchPartition] = {}
        self.told: dict[TopicPartition, tuple[int, int]] = {}
        self.credit_bytes = 0
        self.settings = pb.FetchSettings()

    def take(self, request: pb.FetchRequest) -> None:
        if request.HasField("settings"):
            self.settings = request.settings
        self.credit_bytes += request.credit_bytes
        for gone in request.remove:
            self.wanted.pop(TopicPartition(gone.topic, gone.partition), None)
        for item in request.add:
            name = TopicPartition(item.topic, item.partition)
            self.wanted[name] = item
            self.told.pop(name, None)


async def serve_fetch(
    cluster: MemoryCluster,
    broker_id: int,
    requests: AsyncIterator[pb.FetchRequest],
    find: Find,
) -> AsyncGenerator[pb.FetchResponse, None]:
    """Answers until the stream is cancelled."""
    session = _Session()

    async def listen() -> None:
        async for request in requests:
            session.take(request)
            cluster.wake()

    listener = asyncio.create_task(listen(), name="memory fetch: listen")
    try:
        while True:
            response = pb.FetchResponse()
            for name in list(session.wanted):
                news = _look(cluster, broker_id, session, name, find)
                if news is not None:
                    response.partitions.append(news)
            if response.partitions:
                yield response
            else:
                await cluster.wait_change()
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


def _look(
    cluster: MemoryCluster, broker_id: int, session: _Session, name: TopicPartition, find: Find
) -> pb.FetchPartitionData | None:
    item = session.wanted[name]
    code, partition = find(cluster, broker_id, *name, item.current_leader_epoch)
    if code is ErrorCode.NONE:
        code = cluster.take_fault("fetch", name)
    news = pb.FetchPartitionData(
        topic=name.topic,
        partition=name.partition,
        fetch_id=item.fetch_id,
        preferred_read_replica=-1,
        next_offset=item.offset,
    )
    if partition is not None and code is ErrorCode.NONE:
        log = partition.log
        news.high_watermark = news.last_stable_offset = log.log_end_offset
        news.log_start_offset = log.log_start_offset
        if not log.log_start_offset <= item.offset <= log.log_end_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
    if partition is None or code is not ErrorCode.NONE:
        news.error_code = code
        if partition is not None:
            news.leader.CopyFrom(cluster.leader_hint(partition))
        del session.wanted[name]
        return news
    taken = []
    if session.credit_bytes > 0:
        bytes_max = session.settings.message_bytes_max or MESSAGE_BYTES_MAX
        taken = list(partition.log.read(item.offset, min(bytes_max, session.credit_bytes)))
    if taken:
        news.records = b"".join(batch.data for batch in taken)
        session.credit_bytes -= len(news.records)
        news.next_offset = item.offset = taken[-1].next_offset
        if session.settings.read_committed:
            for producer_id, first, last in partition.log.aborted:
                if last >= taken[0].base_offset and first < news.next_offset:
                    news.aborted_transactions.add(producer_id=producer_id, first_offset=first)
    if 0 <= item.end_offset <= item.offset:
        news.end_reached = True
        del session.wanted[name]
        return news
    state = (news.next_offset, news.high_watermark)
    if taken or session.told.get(name) != state:
        session.told[name] = state
        return news
    return None
