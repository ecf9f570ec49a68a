"""DescribeLogDirs: the size of each partition's log on this broker, and the free space of its disk."""

from __future__ import annotations

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeLogDirsRequest, DescribeLogDirsResponse

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition


def _refuse(_request: AnyRequest, code: ErrorCode) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code, results=[])


@handles(
    DescribeLogDirsRequest,
    refuse=_refuse,
    needs=lambda services: services.inventory is not None,
)
async def describe_log_dirs(request: Request[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    """Describe the broker's data directory with the logs of the requested partitions, or of all partitions."""
    inventory = request.services.inventory
    assert inventory is not None
    named: set[tuple[str, int]] | None = None
    if request.message.topics is not None:
        named = {
            (topic.topic, index)
            async for topic in request.in_turns(request.message.topics)
            for index in topic.partitions
        }
    topics: dict[str, list[_Partition]] = {}
    async for log in request.in_turns(inventory.local_logs()):
        state = request.services.image.topics.get(log.topic_id)
        if state is None or (named is not None and (state.name, log.partition) not in named):
            continue
        topics.setdefault(state.name, []).append(
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
