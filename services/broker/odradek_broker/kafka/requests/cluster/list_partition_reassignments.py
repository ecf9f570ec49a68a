"""ListPartitionReassignments: the moves that are under way, from this broker's image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ListPartitionReassignmentsResponse, Message
from odradek_protocol.metadata.image import PartitionState

_Topic: Final = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_Partition: Final = _Topic.OngoingPartitionReassignment


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS)
async def list_partition_reassignments(request: Request) -> Message:
    """Of the partitions named, or of all."""
    if not request.allows_cluster(Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, topics=[]
        )
    topics: dict[str, list[Any]] = {}
    async for name, state in request.in_turns(_named(request)):
        if state.adding or state.removing:
            topics.setdefault(name, []).append(
                _Partition(
                    partition_index=state.partition,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
            )
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[_Topic(name=name, partitions=found) for name, found in topics.items()],
    )


def _named(request: Request) -> Iterator[tuple[str, PartitionState]]:
    image = request.services.image
    if request.message.topics is None:
        for topic in list(image.topics.values()):
            for state in topic.partitions:
                yield topic.name, state
        return
    for one in request.message.topics:
        named = image.topic(one.name)
        for index in one.partition_indexes:
            if named is not None and 0 <= index < len(named.partitions):
                yield named.name, named.partitions[index]
