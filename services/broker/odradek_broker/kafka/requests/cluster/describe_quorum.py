"""DescribeQuorum: the metadata quorum, as the partition that Kafka keeps its metadata in (KIP-595)."""

from __future__ import annotations

import time
from typing import Any, Final

from odradek_broker.kafka.forwarding import Unanswered, ask_controller
from odradek_broker.kafka.registry import handles
from odradek_broker.kafka.request import Request
from odradek_protocol.access import Operation
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import DescribeQuorumResponse, Message
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.listeners import split_host_port

METADATA_TOPIC: Final = "__cluster_metadata"
_Topic: Final = DescribeQuorumResponse.TopicData
_Partition: Final = _Topic.PartitionData
_Node: Final = DescribeQuorumResponse.Node
_Listener: Final = _Node.Listener
_Replica: Final = _Partition.ReplicaState


@handles(ApiKey.DESCRIBE_QUORUM)
async def describe_quorum(request: Request) -> Message:
    """As the leader of the quorum sees it; other topics are not there."""
    if not request.allows_cluster(Operation.DESCRIBE):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        answer = await ask_controller(
            request, "DescribeQuorum", pb.DescribeQuorumRequest(), is_admin=False
        )
    except Unanswered as unanswered:
        return _refused(unanswered.code, str(unanswered))
    if answer.error_code != ErrorCode.NONE:
        return _refused(answer.error_code)
    metadata = _partition(answer)
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=[
            _Topic(
                topic_name=topic.topic_name,
                partitions=[
                    metadata
                    if topic.topic_name == METADATA_TOPIC and one.partition_index == 0
                    else _unknown(one.partition_index)
                    async for one in request.in_turns(topic.partitions)
                ],
            )
            async for topic in request.in_turns(request.message.topics)
        ],
        nodes=[_node(voter) for voter in answer.voters],
    )


def _partition(answer: pb.DescribeQuorumResponse) -> Any:
    now_ms = time.time_ns() // 1_000_000
    voters = []
    for voter in answer.voters:
        is_leader = voter.controller_id == answer.leader_id
        heard_ms = now_ms - voter.last_heard_ms if voter.last_heard_ms >= 0 else -1
        voters.append(
            _Replica(
                replica_id=voter.controller_id,
                log_end_offset=voter.log_end,
                last_fetch_timestamp=now_ms if is_leader else heard_ms,
                last_caught_up_timestamp=now_ms
                if is_leader or voter.log_end >= answer.commit_offset
                else -1,
            )
        )
    return _Partition(
        partition_index=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        leader_id=answer.leader_id,
        leader_epoch=answer.term,
        high_watermark=answer.commit_offset,
        current_voters=voters,
        observers=[],
    )


def _unknown(index: int) -> Any:
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


def _node(voter: pb.QuorumVoter) -> Any:
    listeners = []
    if voter.rpc_endpoint:
        host, port = split_host_port(voter.rpc_endpoint)
        listeners.append(_Listener(name="CONTROLLER", host=host, port=port))
    return _Node(node_id=voter.controller_id, listeners=listeners)


def _refused(code: int, text: str = "") -> Message:
    return DescribeQuorumResponse(error_code=code, error_message=text or None, topics=[], nodes=[])
