"""AlterPartitionReassignments: moves partitions to other replicas, or cancels that (KIP-455)."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import AlterPartitionReassignmentsResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

_RF_CHANGE_FROM: Final = 1
_Topic: Final = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Partition: Final = _Topic.ReassignablePartitionResponse


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
async def alter_partition_reassignments(request: Request) -> Message:
    """Each partition on its own; an empty list of replicas is refused, null cancels."""
    if not request.allows_cluster(Operation.ALTER):
        return AlterPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, responses=[]
        )
    message = request.message
    allows_change = request.version < _RF_CHANGE_FROM or message.allow_replication_factor_change
    results: dict[tuple[str, int], tuple[int, str]] = {}
    wanted: list[pb.PartitionReassignment] = []
    async for topic in request.in_turns(message.topics):
        async for one in request.in_turns(topic.partitions):
            if one.replicas is not None and not one.replicas:
                results[topic.name, one.partition_index] = (
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "there must be at least one replica",
                )
                continue
            wanted.append(
                pb.PartitionReassignment(
                    partition=common_pb2.TopicPartition(
                        topic=topic.name, partition=one.partition_index
                    ),
                    replicas=one.replicas or (),
                )
            )
    error, text = int(ErrorCode.NONE), ""
    if wanted:
        asked = pb.AlterPartitionReassignmentsRequest(
            reassignments=wanted,
            timeout_ms=message.timeout_ms,
            keep_replication_factor=not allows_change,
        )
        try:
            answer = await change(
                request, "AlterPartitionReassignments", asked, timeout_ms=message.timeout_ms
            )
        except Unanswered as unanswered:
            error, text = unanswered.code, str(unanswered)
        else:
            error = answer.error_code
            async for told in request.in_turns(answer.partitions):
                key = (told.partition.topic, told.partition.partition)
                results[key] = (told.error_code, told.error_message)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_change,
        error_code=error,
        error_message=text or None,
        responses=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=one.partition_index,
                        error_code=code,
                        error_message=why or None,
                    )
                    async for one in request.in_turns(topic.partitions)
                    for code, why in [results.get((topic.name, one.partition_index), (error, text))]
                ],
            )
            async for topic in request.in_turns(message.topics)
        ],
    )
