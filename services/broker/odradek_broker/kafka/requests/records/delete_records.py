"""DeleteRecords: raises the log start offset of partitions. Clients send the request to each partition's leader."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_broker.replication.partition import Partition
from odradek_protocol.access import Operation
from odradek_protocol.identity import Offset, PartitionIndex, TopicName
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteRecordsRequest, DeleteRecordsResponse
from odradek_protocol.metadata.configs import INTERNAL_TOPICS

DELETED_AT_ONCE: Final = 100
_Deletion = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


@handles(DeleteRecordsRequest)
async def delete_records(request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    """Delete records in at most `DELETED_AT_ONCE` partitions at a time. Each deletion waits for the replicas."""
    deletions = [
        (topic.name, deletion) for topic in request.message.topics for deletion in topic.partitions
    ]
    deleted: list[_Partition] = []
    for start in range(0, len(deletions), DELETED_AT_ONCE):
        at_once = deletions[start : start + DELETED_AT_ONCE]
        deleted += await asyncio.gather(
            *(_delete(request, topic, deletion) for topic, deletion in at_once)
        )
        if len(deletions) > DELETED_AT_ONCE:
            await request.pace.turn()
    results = iter(deleted)
    return DeleteRecordsResponse(
        topics=[
            _Topic(name=topic.name, partitions=list(islice(results, len(topic.partitions))))
            async for topic in request.in_turns(request.message.topics)
        ]
    )


async def _delete(
    request: Request[DeleteRecordsRequest], topic: str, deletion: _Deletion
) -> _Partition:
    partition: Partition | ErrorCode
    if not request.allows_topic(Operation.DELETE, topic):
        partition = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic in INTERNAL_TOPICS:
        partition = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        partition = request.services.partitions.find(
            TopicName(topic), PartitionIndex(deletion.partition_index)
        )
    if isinstance(partition, ErrorCode):
        outcome = OffsetOutcome(partition)
    else:
        outcome = await partition.delete_records(
            Offset(deletion.offset), timeout_ms=max(request.message.timeout_ms, 0)
        )
    return _Partition(
        partition_index=deletion.partition_index,
        low_watermark=outcome.offset,
        error_code=outcome.error,
    )
