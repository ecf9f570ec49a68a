"""DescribeLogDirs: how much this broker keeps of each partition, and what its disk has left."""

from __future__ import annotations

from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeLogDirsResponse, Message

_Result: Final = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic: Final = _Result.DescribeLogDirsTopic
_Partition: Final = _Topic.DescribeLogDirsPartition


@handles(ApiKey.DESCRIBE_LOG_DIRS, needs=lambda services: services.inventory is not None)
async def describe_log_dirs(request: Request) -> Message:
    """There is one directory."""
    if not request.allows_cluster(Operation.DESCRIBE):
        return DescribeLogDirsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=[]
        )
    inventory = request.services.inventory
    assert inventory is not None
    wanted: set[tuple[str, int]] | None = None
    if request.message.topics is not None:
        wanted = {
            (t.topic, index)
            async for t in request.in_turns(request.message.topics)
            for index in t.partitions
        }
    topics: dict[str, list[Any]] = {}
    async for log in request.in_turns(inventory.local_logs()):
        topic = request.services.image.topics.get(log.topic_id)
        if topic is None or (wanted is not None and (topic.name, log.partition) not in wanted):
            continue
        topics.setdefault(topic.name, []).append(
            _Partition(
                partition_index=log.partition,
                partition_size=log.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
        )
    total, usable = inventory.disk_bytes()
    failed = bool(inventory.offline_reason)
    return DescribeLogDirsResponse(
        error_code=ErrorCode.NONE,
        results=[
            _Result(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE,
                log_dir=str(request.services.settings.log_dir),
                topics=[
                    _Topic(name=name, partitions=partitions)
                    for name, partitions in sorted(topics.items())
                ],
                total_bytes=total,
                usable_bytes=usable,
                is_cordoned=False,
            )
        ],
    )
