"""DeleteRecords: moves the log's start, at the leader; the client asks the leaders itself."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from odradek_broker.kafka_api.registry import handles
from odradek_broker.kafka_api.request import Request
from odradek_broker.replication.outcomes import OffsetOutcome
from odradek_broker.security.rights import Operation
from odradek_protocol.identity import Offset, PartitionIndex, TopicName
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DeleteRecordsResponse, Message
from odradek_protocol.metadata.configs import INTERNAL_TOPICS

_Topic: Final = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition: Final = _Topic.DeleteRecordsPartitionResult


@handles(ApiKey.DELETE_RECORDS)
async def delete_records(request: Request) -> Message:
    """Each partition on its own, all at once: each waits for its replicas."""
    return DeleteRecordsResponse(
        topics=[
            _Topic(name=topic.name, partitions=partitions)
            for topic, partitions in zip(
                request.message.topics,
                await asyncio.gather(
                    *(_delete_all(request, topic) for topic in request.message.topics)
                ),
                strict=True,
            )
        ]
    )


async def _delete_all(request: Request, topic: Any) -> list[Any]:
    return await asyncio.gather(*(_delete(request, topic.name, one) for one in topic.partitions))


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
