"""ElectLeaders: preferred leaders, or unclean ones (KIP-183, KIP-460)."""

from __future__ import annotations

from typing import Final

from odradek_broker.kafka.forwarding import Unanswered, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ElectLeadersResponse, Message
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import common_pb2

_Topic: Final = ElectLeadersResponse.ReplicaElectionResult
_Partition: Final = _Topic.PartitionResult


@handles(ApiKey.ELECT_LEADERS)
async def elect_leaders(request: Request) -> Message:
    """Without partitions: all; then those that needed no election are left out."""
    if not request.allows_cluster(Operation.ALTER):
        return ElectLeadersResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, replica_election_results=[]
        )
    message = request.message
    asked = pb.ElectLeadersRequest(
        election_type=message.election_type,
        partitions=[
            common_pb2.TopicPartition(topic=topic.topic, partition=index)
            async for topic in request.in_turns(message.topic_partitions or ())
            async for index in request.in_turns(topic.partitions)
        ],
        timeout_ms=message.timeout_ms,
    )
    try:
        answer = await change(request, "ElectLeaders", asked, timeout_ms=message.timeout_ms)
    except Unanswered as unanswered:
        return ElectLeadersResponse(error_code=unanswered.code, replica_election_results=[])
    topics: dict[str, list[object]] = {}
    async for one in request.in_turns(answer.partitions):
        if message.topic_partitions is None and one.error_code == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        topics.setdefault(one.partition.topic, []).append(
            _Partition(
                partition_id=one.partition.partition,
                error_code=one.error_code,
                error_message=one.error_message or None,
            )
        )
    return ElectLeadersResponse(
        error_code=answer.error_code,
        replica_election_results=[
            _Topic(topic=topic, partition_result=results) for topic, results in topics.items()
        ],
    )
