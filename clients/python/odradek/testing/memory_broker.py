"""The services of a broker in the in-memory cluster: BrokerService, GroupService, TransactionService and
StagedWriteService.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from google.protobuf.message import Message

from odradek.partitions import TopicPartition
from odradek.testing.memory_log import MemoryPartition
from odradek.testing.memory_state import MemoryState
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import (
    group_service_pb2,
    staged_write_service_pb2,
    transaction_service_pb2,
)
from odradek_protocol.topic_names import topic_name_error

Call = Callable[[MemoryState, int, Any], Message]
StreamHandler = Callable[[MemoryState, int, AsyncIterator[Any]], AsyncGenerator[Any, None]]
MESSAGE_BYTES_MAX = 1 << 20


def find(
    cluster: MemoryState, broker_id: int, name: str, index: int, client_epoch: int = -1
) -> tuple[ErrorCode, MemoryPartition | None]:
    """Return (NONE, the partition), or the error code with which this broker must refuse the request. `client_epoch` is
    the leader epoch in the request; -1: none.
    """
    partition = cluster.partition(name, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if partition.leader_id != broker_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, partition
    if client_epoch >= 0 and client_epoch != partition.leader_epoch:
        is_older = client_epoch < partition.leader_epoch
        return (
            ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
        ), partition
    return ErrorCode.NONE, partition


async def _produce(
    cluster: MemoryState, broker_id: int, requests: AsyncIterator[pb.ProduceRequest]
) -> AsyncGenerator[pb.ProduceResponse, None]:
    async for request in requests:
        response = pb.ProduceResponse(request_id=request.request_id)
        is_lost = False
        for item in request.partitions:
            name = TopicPartition(item.topic, item.partition)
            result = response.partitions.add(
                topic=item.topic, partition=item.partition, base_offset=-1, log_append_time_ms=-1
            )
            code, partition = find(cluster, broker_id, *name)
            if code is ErrorCode.NONE:
                code = cluster.take_fault("produce", name)
            if code is ErrorCode.NONE:
                code = cluster.transactions.admit(request.transactional_id, name, item.records)
            if partition is None or code is not ErrorCode.NONE:
                result.error_code = code
                if partition is not None and code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    result.leader.CopyFrom(cluster.leader_hint(partition))
                continue
            limit = int(cluster.topics[item.topic].configs.get("max.message.bytes", 1 << 20))
            if len(item.records) > limit:
                result.error_code = ErrorCode.MESSAGE_TOO_LARGE
                result.error_message = (
                    f"the batch has {len(item.records)} bytes, but max.message.bytes is {limit}"
                )
                continue
            result.error_code, result.base_offset = partition.log.append(
                item.records, partition.leader_epoch
            )
            result.log_start_offset = partition.log.log_start_offset
            is_lost |= cluster.takes_answer_away(name)
        cluster.wake()
        if is_lost:
            raise ConnectionResetError
        if request.acks:
            yield response


async def _watch(
    cluster: MemoryState, broker_id: int, requests: AsyncIterator[pb.WatchMetadataRequest]
) -> AsyncGenerator[pb.WatchMetadataResponse, None]:
    request = await anext(requests)
    names = None if request.all_topics else list(request.topics)
    sent_offset, is_first, sent_topics = -1, True, dict[bytes, str]()
    while True:
        if cluster.metadata_offset != sent_offset:
            sent_offset = cluster.metadata_offset
            metadata = cluster.metadata(names)
            present = {t.topic_id: t.name for t in metadata.topics if not t.error_code}
            removed = sorted(
                sent_topics[topic_id] for topic_id in sent_topics.keys() - present.keys()
            )
            yield pb.WatchMetadataResponse(
                metadata=metadata, is_full=is_first, removed_topics=removed
            )
            is_first, sent_topics = False, present
            continue
        await cluster.wait_change()


def _metadata(
    cluster: MemoryState, broker_id: int, request: pb.MetadataRequest
) -> pb.MetadataResponse:
    if request.allow_auto_topic_creation and cluster.auto_create_topics:
        for name in request.topics:
            if name not in cluster.topics and not topic_name_error(name):
                cluster.create_topic(name, cluster.default_partitions)
    return cluster.metadata(None if request.all_topics else list(request.topics))


def _list_offsets(
    cluster: MemoryState, broker_id: int, request: pb.ListOffsetsRequest
) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    for item in request.partitions:
        name = TopicPartition(item.topic, item.partition)
        result = response.partitions.add(
            topic=item.topic, partition=item.partition, offset=-1, timestamp_ms=-1, leader_epoch=-1
        )
        code, partition = find(cluster, broker_id, *name, item.current_leader_epoch)
        if code is ErrorCode.NONE:
            code = cluster.take_fault("offsets", name)
        result.error_code = code
        if partition is None or code is not ErrorCode.NONE:
            continue
        log = partition.log
        if item.timestamp_ms == -1:
            is_committed = request.read_committed
            result.offset = log.last_stable_offset if is_committed else log.log_end_offset
        elif item.timestamp_ms == -2:
            result.offset = log.log_start_offset
        elif item.timestamp_ms == -3:
            result.offset, result.timestamp_ms = log.offset_of_largest_timestamp()
        else:
            result.offset, result.timestamp_ms = log.offset_for_timestamp(item.timestamp_ms)
        result.leader_epoch = partition.leader_epoch
    return response


def _offset_for_leader_epoch(
    cluster: MemoryState, broker_id: int, request: pb.OffsetForLeaderEpochRequest
) -> pb.OffsetForLeaderEpochResponse:
    response = pb.OffsetForLeaderEpochResponse()
    for item in request.partitions:
        code, partition = find(
            cluster, broker_id, item.topic, item.partition, item.current_leader_epoch
        )
        epoch, end_offset = -1, -1
        if partition is not None and code is ErrorCode.NONE:
            epoch, end_offset = partition.log.end_of_epoch(item.leader_epoch)
        response.partitions.add(
            topic=item.topic,
            partition=item.partition,
            error_code=code,
            leader_epoch=epoch,
            end_offset=end_offset,
        )
    return response


def _init_producer_id(
    cluster: MemoryState, broker_id: int, request: pb.InitProducerIdRequest
) -> pb.InitProducerIdResponse:
    return pb.InitProducerIdResponse(producer_id=cluster.new_producer_id(), producer_epoch=0)


class _Session:
    """The state of one fetch stream: its partitions, credit and settings after all requests so far."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, pb.FetchPartition] = {}
        self.sent_state: dict[TopicPartition, tuple[int, int, int]] = {}
        self.credit_bytes = 0
        self.settings = pb.FetchSettings()

    def take(self, request: pb.FetchRequest) -> None:
        if request.HasField("settings"):
            self.settings = request.settings
        self.credit_bytes += request.credit_bytes
        for removed in request.remove:
            self.wanted.pop(TopicPartition(removed.topic, removed.partition), None)
        for item in request.add:
            name = TopicPartition(item.topic, item.partition)
            self.wanted[name] = item
            self.sent_state.pop(name, None)


async def _fetch(
    cluster: MemoryState, broker_id: int, requests: AsyncIterator[pb.FetchRequest]
) -> AsyncGenerator[pb.FetchResponse, None]:
    """Send available records, within the client's credit, until the stream is cancelled."""
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
                data = _look(cluster, broker_id, session, name)
                if data is not None:
                    response.partitions.append(data)
            if response.partitions:
                await asyncio.sleep(0)
                yield response
            else:
                await cluster.wait_change()
    finally:
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener


def _look(
    cluster: MemoryState, broker_id: int, session: _Session, name: TopicPartition
) -> pb.FetchPartitionData | None:
    item = session.wanted[name]
    code, partition = find(cluster, broker_id, *name, item.current_leader_epoch)
    if code is ErrorCode.NONE:
        code = cluster.take_fault("fetch", name)
    data = pb.FetchPartitionData(
        topic=name.topic,
        partition=name.partition,
        fetch_id=item.fetch_id,
        preferred_read_replica=-1,
        next_offset=item.offset,
    )
    if partition is not None and code is ErrorCode.NONE:
        log = partition.log
        data.high_watermark = log.log_end_offset
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if not log.log_start_offset <= item.offset <= log.log_end_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
    if partition is None or code is not ErrorCode.NONE:
        data.error_code = code
        if partition is not None:
            data.leader.CopyFrom(cluster.leader_hint(partition))
        del session.wanted[name]
        return data
    taken = []
    if session.credit_bytes > 0:
        bytes_max = session.settings.message_bytes_max or MESSAGE_BYTES_MAX
        end_offset = partition.log.last_stable_offset if session.settings.read_committed else None
        taken = list(
            partition.log.read(
                item.offset, min(bytes_max, session.credit_bytes), end_offset=end_offset
            )
        )
    if taken:
        data.records = b"".join(batch.data for batch in taken)
        session.credit_bytes -= len(data.records)
        data.next_offset = item.offset = taken[-1].next_offset
        if session.settings.read_committed:
            for producer_id, first, last in partition.log.aborted:
                if last >= taken[0].base_offset and first < data.next_offset:
                    data.aborted_transactions.add(producer_id=producer_id, first_offset=first)
    if 0 <= item.end_offset <= item.offset:
        data.end_reached = True
        del session.wanted[name]
        return data
    state = (data.next_offset, data.high_watermark, data.last_stable_offset)
    if taken or session.sent_state.get(name) != state:
        session.sent_state[name] = state
        return data
    return None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _delete_groups(
    cluster: MemoryState, broker_id: int, request: group_service_pb2.DeleteGroupsRequest
) -> group_service_pb2.DeleteGroupsResponse:
    response = group_service_pb2.DeleteGroupsResponse()
    for group_id in request.group_ids:
        response.groups.add(group_id=group_id, error_code=cluster.groups.delete(group_id, _now_s()))
    return response


def _describe_groups(
    cluster: MemoryState, broker_id: int, request: group_service_pb2.DescribeGroupsRequest
) -> group_service_pb2.DescribeGroupsResponse:
    return group_service_pb2.DescribeGroupsResponse(
        groups=[cluster.groups.describe(group_id, _now_s()) for group_id in request.group_ids]
    )


GROUP_CALLS: Final[dict[str, tuple[type[Message], Callable[[Any, int, Any], Message]]]] = {
    "GroupHeartbeat": (
        group_service_pb2.GroupHeartbeatRequest,
        lambda c, _, q: c.groups.heartbeat(q, _now_s()),
    ),
    "CommitOffsets": (
        group_service_pb2.CommitOffsetsRequest,
        lambda c, _, q: c.groups.commit(q, _now_s()),
    ),
    "FetchOffsets": (
        group_service_pb2.FetchOffsetsRequest,
        lambda c, _, q: c.groups.fetch_offsets(q),
    ),
    "ListGroups": (
        group_service_pb2.ListGroupsRequest,
        lambda c, _, q: c.groups.list_groups(_now_s()),
    ),
    "DescribeGroups": (group_service_pb2.DescribeGroupsRequest, _describe_groups),
    "DeleteGroups": (group_service_pb2.DeleteGroupsRequest, _delete_groups),
    "DeleteOffsets": (
        group_service_pb2.DeleteOffsetsRequest,
        lambda c, _, q: c.groups.delete_offsets(q, _now_s()),
    ),
}


TRANSACTION_CALLS: Final[dict[str, tuple[type[Message], Call]]] = {
    "InitProducer": (
        transaction_service_pb2.InitProducerRequest,
        lambda c, _, q: c.transactions.init(q),
    ),
    "EndTransaction": (
        transaction_service_pb2.EndTransactionRequest,
        lambda c, _, q: c.transactions.end(q),
    ),
    "CommitTransactionOffsets": (
        transaction_service_pb2.CommitTransactionOffsetsRequest,
        lambda c, _, q: c.transactions.commit_offsets(q, _now_s()),
    ),
    "ListTransactions": (
        transaction_service_pb2.ListTransactionsRequest,
        lambda c, _, q: c.transactions.listing(q),
    ),
    "DescribeTransactions": (
        transaction_service_pb2.DescribeTransactionsRequest,
        lambda c, _, q: c.transactions.descriptions(q),
    ),
    "AbortTransaction": (
        transaction_service_pb2.AbortTransactionRequest,
        lambda c, _, q: c.transactions.abort(q),
    ),
    "OpenStaged": (
        staged_write_service_pb2.OpenStagedRequest,
        lambda c, _, q: c.staged_writes.open(q),
    ),
    "RenewStaged": (
        staged_write_service_pb2.RenewStagedRequest,
        lambda c, _, q: c.staged_writes.renew(q),
    ),
    "PrepareStaged": (
        staged_write_service_pb2.PrepareStagedRequest,
        lambda c, _, q: c.staged_writes.prepare(q),
    ),
    "CompleteStep": (
        staged_write_service_pb2.CompleteStepRequest,
        lambda c, _, q: c.staged_writes.complete(q),
    ),
    "AbortStaged": (
        staged_write_service_pb2.AbortStagedRequest,
        lambda c, _, q: c.staged_writes.abort(q),
    ),
    "DescribeSteps": (
        staged_write_service_pb2.DescribeStepsRequest,
        lambda c, _, q: c.staged_writes.describe(q),
    ),
    "ForgetSteps": (
        staged_write_service_pb2.ForgetStepsRequest,
        lambda c, _, q: c.staged_writes.forget(q),
    ),
}
BROKER_CALLS: Final[dict[str, tuple[type[Message], Call]]] = {
    "Metadata": (pb.MetadataRequest, _metadata),
    "ListOffsets": (pb.ListOffsetsRequest, _list_offsets),
    "OffsetForLeaderEpoch": (pb.OffsetForLeaderEpochRequest, _offset_for_leader_epoch),
    "InitProducerId": (pb.InitProducerIdRequest, _init_producer_id),
}
BROKER_STREAMS: Final[dict[str, tuple[type[Message], StreamHandler]]] = {
    "Produce": (pb.ProduceRequest, _produce),
    "Fetch": (pb.FetchRequest, _fetch),
    "WatchMetadata": (pb.WatchMetadataRequest, _watch),
}
