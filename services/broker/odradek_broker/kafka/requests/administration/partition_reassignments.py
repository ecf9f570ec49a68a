"""AlterPartitionReassignments and ListPartitionReassignments: moves of partitions to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

_WITH_FACTOR_CHANGE: Final = 1
_AlteredTopic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_AlteredPartition = _AlteredTopic.ReassignablePartitionResponse
_OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
_OngoingPartition = _OngoingTopic.OngoingPartitionReassignment


async def _refuse_alterations(
    request: Request[AlterPartitionReassignmentsRequest], code: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=None,
        responses=[
            _AlteredTopic(
                name=topic.name,
                partitions=[
                    _AlteredPartition(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=None,
                    )
                    async for partition in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topics)
        ],
    )


@handles(AlterPartitionReassignmentsRequest, refuse=_refuse_alterations)
async def alter_partition_reassignments(
    request: Request[AlterPartitionReassignmentsRequest],
) -> AlterPartitionReassignmentsResponse:
    """Move partitions to other brokers. Null replicas cancel a move. Each partition has its own result."""
    message = request.message
    allows_factor_change = (
        request.version < _WITH_FACTOR_CHANGE or message.allow_replication_factor_change
    )
    results: dict[tuple[str, int], tuple[int, str]] = {}
    moves: list[pb.PartitionReassignment] = []
    async for topic in request.in_turns(message.topics):
        async for partition in request.in_turns(topic.partitions):
            index = partition.partition_index
            if partition.replicas is not None and not partition.replicas:
                results[topic.name, index] = (
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "the list of replicas is empty: name at least one replica, or use null to cancel a move",
                )
                continue
            moves.append(
                pb.PartitionReassignment(
                    partition=common_pb2.TopicPartition(topic=topic.name, partition=index),
                    replicas=partition.replicas or (),
                )
            )
    error, text = int(ErrorCode.NONE), ""
    if moves:
        command = pb.AlterPartitionReassignmentsRequest(
            reassignments=moves,
            timeout_ms=message.timeout_ms,
            keep_replication_factor=not allows_factor_change,
        )
        try:
            response = await change(
                request,
                "AlterPartitionReassignments",
                command,
                pb.AlterPartitionReassignmentsResponse,
                timeout_ms=message.timeout_ms,
            )
        except ControllerUnavailable as unavailable:
            error, text = unavailable.code, str(unavailable)
        else:
            error = response.error_code
            async for result in request.in_turns(response.partitions):
                key = (result.partition.topic, result.partition.partition)
                results[key] = (result.error_code, result.error_message)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_factor_change,
        error_code=error,
        error_message=text or None,
        responses=[
            _AlteredTopic(
                name=topic.name,
                partitions=[
                    _AlteredPartition(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=why or None,
                    )
                    async for partition in request.in_turns(topic.partitions)
                    for code, why in [
                        results.get((topic.name, partition.partition_index), (error, text))
                    ]
                ],
            )
            async for topic in request.in_turns(message.topics)
        ],
    )


def _refuse_list(_request: AnyRequest, code: ErrorCode) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=code, error_message=None, topics=[])


@handles(ListPartitionReassignmentsRequest, refuse=_refuse_list)
async def list_partition_reassignments(
    request: Request[ListPartitionReassignmentsRequest],
) -> ListPartitionReassignmentsResponse:
    """List the moves in progress of the requested partitions, or of all partitions, from this broker's image."""
    topics: dict[str, list[_OngoingPartition]] = {}
    async for name, state in request.in_turns(_partitions(request)):
        if state.adding or state.removing:
            topics.setdefault(name, []).append(
                _OngoingPartition(
                    partition_index=state.partition,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
            )
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[
            _OngoingTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def _partitions(
    request: Request[ListPartitionReassignmentsRequest],
) -> Iterator[tuple[str, PartitionState]]:
    image = request.services.image
    if request.message.topics is None:
        for state in list(image.topics.values()):
            for partition in state.partitions:
                yield state.name, partition
        return
    for topic in request.message.topics:
        named = image.topic(topic.name)
        for index in topic.partition_indexes:
            if named is not None and 0 <= index < len(named.partitions):
                yield named.name, named.partitions[index]
