"""ElectLeaders: asks the controller to elect preferred leaders, or unclean ones (KIP-183, KIP-460)."""

from __future__ import annotations

from odradek_broker.kafka.forwarding import ControllerUnavailable, change
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import ElectLeadersRequest, ElectLeadersResponse
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb

_Topic = ElectLeadersResponse.ReplicaElectionResult
_Partition = _Topic.PartitionResult


async def _refuse(request: Request[ElectLeadersRequest], code: ErrorCode) -> ElectLeadersResponse:
    """Return `code` for each partition, too, because version 0 has no error code for the whole request."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            _Topic(
                topic=topic.topic,
                partition_result=[
                    _Partition(partition_id=index, error_code=code, error_message=None)
                    async for index in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topic_partitions or ())
        ],
    )


@handles(ElectLeadersRequest, refuse=_refuse)
async def elect_leaders(request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    """Elect leaders of the requested partitions. If the list of partitions is null, elect leaders of all partitions,
    and omit from the response the partitions that needed no election.
    """
    message = request.message
    named = message.topic_partitions
    if named is not None and not any(topic.partitions for topic in named):
        # For the controller, a command without partitions means all partitions.
        return ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=[])
    command = pb.ElectLeadersRequest(
        election_type=message.election_type, timeout_ms=message.timeout_ms
    )
    async for topic in request.in_turns(named or ()):
        async for index in request.in_turns(topic.partitions):
            command.partitions.add(topic=topic.topic, partition=index)
    try:
        response = await change(
            request,
            "ElectLeaders",
            command,
            pb.ElectLeadersResponse,
            timeout_ms=message.timeout_ms,
        )
    except ControllerUnavailable as unavailable:
        return await _refuse(request, unavailable.code)
    topics: dict[str, list[_Partition]] = {}
    async for result in request.in_turns(response.partitions):
        if named is None and result.error_code == ErrorCode.ELECTION_NOT_NEEDED:
            continue
        topics.setdefault(result.partition.topic, []).append(
            _Partition(
                partition_id=result.partition.partition,
                error_code=result.error_code,
                error_message=result.error_message or None,
            )
        )
    return ElectLeadersResponse(
        error_code=response.error_code,
        replica_election_results=[
            _Topic(topic=topic, partition_result=results) for topic, results in topics.items()
        ],
    )
