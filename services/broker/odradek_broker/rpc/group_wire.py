"""GroupService's messages as the group coordinator's, and back."""

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
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb


def beat(request: pb.GroupHeartbeatRequest) -> ConsumerHeartbeat:
    """A member tells that it is there."""

    def maybe(name: str) -> str | None:
        return getattr(request, name) if request.HasField(name) else None

    names = tuple(TopicName(name) for name in request.subscribed_topics)
    pattern = maybe("subscribed_pattern")
    return ConsumerHeartbeat(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        member_epoch=request.member_epoch,
        instance_id=maybe("instance_id"),
        rack_id=maybe("rack"),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=names if request.has_subscription else None,
        subscribed_regex=(pattern or "") if request.has_subscription else None,
        server_assignor=maybe("assignor"),
        owned=_assignment(request.owned) if request.has_owned else None,
        client_id="odradek",
        client_host=f"/{request.host}",
        principal=request.principal,
    )


def beat_answer(told: ConsumerHeartbeatAnswer, image: MetadataImage) -> pb.GroupHeartbeatResponse:
    """What a member is told of that."""
    answer = pb.GroupHeartbeatResponse(
        error_code=told.error,
        error_message=told.error_message or "",
        member_epoch=told.member_epoch,
        heartbeat_interval_ms=told.heartbeat_interval_ms,
    )
    if told.assignment is not None:
        answer.has_assignment = True
        answer.assignment.extend(_partitions(told.assignment, image))
    return answer


def commit(request: pb.CommitOffsetsRequest) -> CommitOffsets:
    """Offsets to be kept."""
    return CommitOffsets(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        instance_id=request.instance_id if request.HasField("instance_id") else None,
        generation_or_epoch=request.member_epoch if request.member_id else -1,
        offsets={
            partition(one.partition): CommittedOffset(
                offset=Offset(one.offset),
                leader_epoch=LeaderEpoch(one.leader_epoch),
                metadata=one.metadata,
            )
            for one in request.offsets
        },
    )


def fetch(request: pb.FetchOffsetsRequest) -> FetchOffsets:
    """Which offsets are asked for, by whom."""
    return FetchOffsets(
        group_id=GroupId(request.group_id),
        partitions=[partition(p) for p in request.partitions] or None,
        member_id=MemberId(request.member_id) if request.member_id else None,
        member_epoch=request.member_epoch if request.member_id else -1,
    )


def committed(told: FetchedOffsets) -> pb.FetchOffsetsResponse:
    """The offsets that are kept; -1 for a partition without."""
    answer = pb.FetchOffsetsResponse(error_code=told.error)
    for named, offset in told.offsets.items():
        answer.offsets.add(
            partition=_wire(named),
            offset=-1 if offset is None else offset.offset,
            leader_epoch=-1 if offset is None else offset.leader_epoch,
            metadata="" if offset is None else offset.metadata,
        )
    return answer


def results(told: OffsetsAnswer) -> Sequence[pb.GroupOffset]:
    """What became of each partition's offset."""
    return [
        pb.GroupOffset(partition=_wire(named), error_code=code)
        for named, code in told.partitions.items()
    ]


def description(
    group: GroupDescription, image: MetadataImage, coordinator_id: BrokerId
) -> pb.GroupDescription:
    """A group as its coordinator sees it."""
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
    """One that a client names."""
    return TopicPartition(TopicName(named.topic), PartitionIndex(named.partition))


def _wire(partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def _assignment(topics: Iterable[pb.GroupTopicPartitions]) -> Assignment:
    return {
        TopicId(one.topic_id): frozenset(PartitionIndex(i) for i in one.partitions)
        for one in topics
        if one.partitions
    }


def _partitions(assignment: Assignment, image: MetadataImage) -> Sequence[pb.GroupTopicPartitions]:
    told = []
    for topic_id, indexes in sorted(assignment.items()):
        topic = image.topics.get(topic_id)
        if topic is not None:  # deleted meanwhile: the next heartbeat's target has it no more
            told.append(
                pb.GroupTopicPartitions(
                    topic_id=topic_id, topic=topic.name, partitions=sorted(indexes)
                )
            )
    return told
