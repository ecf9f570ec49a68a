"""DescribeQuorum: describes the metadata quorum as Kafka does, as a partition of `__cluster_metadata` (KIP-595)."""

from __future__ import annotations

import time

from odradek_broker.kafka.forwarding import ControllerUnavailable, ask_controller
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import AnyRequest, Request
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeQuorumRequest, DescribeQuorumResponse
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_protocol.topic_names import METADATA_TOPIC
from odradek_runtime.listeners import split_host_port

_Topic = DescribeQuorumResponse.TopicData
_Partition = _Topic.PartitionData
_Node = DescribeQuorumResponse.Node
_Listener = _Node.Listener
_Replica = _Partition.ReplicaState


def _refuse(_request: AnyRequest, code: ErrorCode) -> DescribeQuorumResponse:
    return _no_quorum(code)


@handles(DescribeQuorumRequest, refuse=_refuse)
async def describe_quorum(request: Request[DescribeQuorumRequest]) -> DescribeQuorumResponse:
    """Describe the quorum as its leader sees it. All partitions but that of the metadata log get an error."""
    try:
        quorum = await ask_controller(
            request,
            "DescribeQuorum",
            pb.DescribeQuorumRequest(),
            pb.DescribeQuorumResponse,
            is_admin=False,
        )
    except ControllerUnavailable as unavailable:
        return _no_quorum(unavailable.code, str(unavailable))
    if quorum.error_code != ErrorCode.NONE:
        return _no_quorum(quorum.error_code)
    metadata = _partition(quorum)
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[
            _Topic(
                topic_name=topic.topic_name,
                partitions=[
                    metadata
                    if topic.topic_name == METADATA_TOPIC and partition.partition_index == 0
                    else _unknown_partition(partition.partition_index)
                    async for partition in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topics)
        ],
        nodes=[_node(voter) for voter in quorum.voters],
    )


def _partition(quorum: pb.DescribeQuorumResponse) -> _Partition:
    now_ms = time.time_ns() // 1_000_000
    voters = []
    for voter in quorum.voters:
        is_leader = voter.controller_id == quorum.leader_id
        heard_ms = now_ms - voter.last_heard_ms if voter.last_heard_ms >= 0 else -1
        voters.append(
            _Replica(
                replica_id=voter.controller_id,
                log_end_offset=voter.log_end,
                last_fetch_timestamp=now_ms if is_leader else heard_ms,
                last_caught_up_timestamp=now_ms
                if is_leader or voter.log_end >= quorum.commit_offset
                else -1,
            )
        )
    return _Partition(
        partition_index=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.term,
        high_watermark=quorum.commit_offset,
        current_voters=voters,
        observers=[],
    )


def _unknown_partition(index: int) -> _Partition:
    return _Partition(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=None,
        leader_id=-1,
        leader_epoch=-1,
        high_watermark=-1,
        current_voters=[],
        observers=[],
    )


def _node(voter: pb.QuorumVoter) -> _Node:
    listeners = []
    if voter.rpc_endpoint:
        host, port = split_host_port(voter.rpc_endpoint)
        listeners.append(_Listener(name="CONTROLLER", host=host, port=port))
    return _Node(node_id=voter.controller_id, listeners=listeners)


def _no_quorum(code: int, text: str = "") -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=text or None, topics=[], nodes=[])
