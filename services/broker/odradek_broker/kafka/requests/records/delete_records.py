"""DeleteRecords: moves the log's start, at the leader; the client asks the leaders itself."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_protocol.access import Operation
from odradek_protocol.identity import Offset, PartitionIndex, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteRecordsResponse, Message
from odradek_protocol.metadata.configs import INTERNAL_TOPICS

DELETED_AT_ONCE: Final = 100
_Topic: Final = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition: Final = _Topic.DeleteRecordsPartitionResult


@handles(ApiKey.DELETE_RECORDS)
async def delete_records(request: Request) -> Message:
    """Each partition on its own, `DELETED_AT_ONCE` at a time: each waits for its replicas."""
    named = [(topic.name, one) for topic in request.message.topics for one in topic.partitions]
    deleted: list[Any] = []
    for start in range(0, len(named), DELETED_AT_ONCE):
        at_once = named[start : start + DELETED_AT_ONCE]
        deleted += await asyncio.gather(*(_delete(request, *one) for one in at_once))
        if len(named) > DELETED_AT_ONCE:
            await request.pace.turn()
    results = iter(deleted)
    return DeleteRecordsResponse(
        topics=[
            _Topic(name=topic.name, partitions=list(islice(results, len(topic.partitions))))
            async for topic in request.in_turns(request.message.topics)
        ]
    )


async def _delete(request: Request, topic: str, wanted: Any) -> Any:
    if not request.allows_topic(Operation.DELETE, topic):
        outcome = OffsetOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    elif topic in INTERNAL_TOPICS:
        outcome = OffsetOutcome(ErrorCode.INVALID_TOPIC_EXCEPTION)
    else:
        outcome = await request.services.partitions.delete_records(
            TopicName(topic),
            PartitionIndex(wanted.partition_index),
            Offset(wanted.offset),
            timeout_ms=max(request.message.timeout_ms, 0),
        )
    return _Partition(
        partition_index=wanted.partition_index,
        low_watermark=outcome.offset,
        error_code=outcome.error,
    )
