"""Converts messages of GroupService to requests of the group coordinator, and its responses to messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek_broker.groups.messages import (
    Assignment,
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    OffsetsAnswer,
)
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    BrokerId,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb


def beat(request: pb.GroupHeartbeatRequest) -> ConsumerHeartbeat:
    """Convert a member's heartbeat."""

    def optional(name: str) -> str | None:
        return getattr(request, name) if request.HasField(name) else None

    names = tuple(TopicName(name) for name in request.subscribed_topics)
    pattern = optional("subscribed_pattern")
    return ConsumerHeartbeat(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        member_epoch=request.member_epoch,
        instance_id=optional("instance_id"),
        rack_id=optional("rack"),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=names if request.has_subscription else None,
        subscribed_regex=(pattern or "") if request.has_subscription else None,
        server_assignor=optional("assignor"),
        owned=_assignment(request.owned) if request.has_owned else None,
        client_id=request.client_id or "odradek",
        client_host=f"/{request.host}",
        principal=request.principal,
    )


def beat_response(
    outcome: ConsumerHeartbeatAnswer, image: MetadataImage
) -> pb.GroupHeartbeatResponse:
    """Convert the response to a member's heartbeat."""
    response = pb.GroupHeartbeatResponse(
        error_code=outcome.error,
        error_message=outcome.error_message or "",
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
    )
    if outcome.assignment is not None:
        response.has_assignment = True
        response.assignment.extend(_partitions(outcome.assignment, image))
    return response


def commit(request: pb.CommitOffsetsRequest) -> CommitOffsets:
    """Convert a request that commits offsets."""
    return CommitOffsets(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        instance_id=request.instance_id if request.HasField("instance_id") else None,
        generation_or_epoch=request.member_epoch if request.member_id else -1,
        offsets={
            partition(item.partition): CommittedOffset(
                offset=Offset(item.offset),
                leader_epoch=LeaderEpoch(item.leader_epoch),
                metadata=item.metadata,
                topic_id=TopicId(item.topic_id) if item.topic_id else NO_TOPIC_ID,
            )
            for item in request.offsets
        },
    )


def fetch(request: pb.FetchOffsetsRequest) -> FetchOffsets:
    """Convert a request for committed offsets."""
    return FetchOffsets(
        group_id=GroupId(request.group_id),
        partitions=[partition(p) for p in request.partitions] or None,
        member_id=MemberId(request.member_id) if request.member_id else None,
        member_epoch=request.member_epoch if request.member_id else -1,
        requires_stable=request.require_stable,
    )


def committed(fetched: FetchedOffsets) -> pb.FetchOffsetsResponse:
    """Convert committed offsets. The offset is -1 for a partition without a committed offset, and for a partition with
    a pending transactional offset, which also has the error code UNSTABLE_OFFSET_COMMIT.
    """
    response = pb.FetchOffsetsResponse(error_code=fetched.error)
    for named, committed_offset in fetched.offsets.items():
        is_unstable = named in fetched.unstable
        offset = None if is_unstable else committed_offset
        response.offsets.add(
            partition=_wire(named),
            offset=-1 if offset is None else offset.offset,
            leader_epoch=-1 if offset is None else offset.leader_epoch,
            metadata="" if offset is None else offset.metadata,
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
        )
    return response


def results(outcome: OffsetsAnswer) -> Sequence[pb.GroupOffset]:
    """Convert the error codes of partitions."""
    return [
        pb.GroupOffset(partition=_wire(named), error_code=code)
        for named, code in outcome.partitions.items()
    ]


def description(
    group: GroupDescription, image: MetadataImage, coordinator_id: BrokerId
) -> pb.GroupDescription:
    """Convert the description of a group."""
    described = pb.GroupDescription(
        error_code=group.error,
        group_id=group.group_id,
        state=group.state,
        group_type=group.group_type,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        epoch=group.epoch,
        coordinator_id=coordinator_id,
    )
    for member in group.members:
        described.members.add(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_epoch=member.member_epoch,
            assignment=_partitions(member.assignment, image),
        )
    return described


def partition(named: common_pb2.TopicPartition) -> TopicPartition:
    """Convert a topic partition of a request."""
    return TopicPartition(TopicName(named.topic), PartitionIndex(named.partition))


def _wire(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _assignment(topics: Iterable[pb.GroupTopicPartitions]) -> Assignment:
    return {
        TopicId(topic.topic_id): frozenset(map(PartitionIndex, topic.partitions))
        for topic in topics
        if topic.partitions
    }


def _partitions(assignment: Assignment, image: MetadataImage) -> Sequence[pb.GroupTopicPartitions]:
    partitions = []
    for topic_id, indexes in sorted(assignment.items()):
        topic = image.topics.get(topic_id)
        # If the topic is None, it was deleted, and the next assignment will not contain it.
        if topic is not None:
            partitions.append(
                pb.GroupTopicPartitions(
                    topic_id=topic_id, topic=topic.name, partitions=sorted(indexes)
                )
            )
    return partitions
