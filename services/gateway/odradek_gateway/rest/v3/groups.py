"""The v3 routes of consumer groups: members, the partitions of members, and lag."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from odradek import errors
from odradek.admin.descriptions import GroupDescription, GroupMember
from odradek.cluster.turns import in_turns
from odradek.partitions import LATEST, TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import GROUP_NOT_FOUND, RestError
from odradek_gateway.rest.requests import Cluster, GroupName, MemberId, PartitionId, TopicName
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names, ask_for_each
from odradek_gateway.rest.v3.shapes import (
    Collection,
    ConsumerAssignmentResource,
    ConsumerResource,
    GroupResource,
    LagResource,
    LagSummaryResource,
)
from odradek_protocol.kafka.error_codes import ErrorCode

router = APIRouter(prefix=PREFIX, tags=["v3 groups"])


async def group_in_path(group: GroupName, cluster: Cluster) -> GroupDescription:
    """Return the group that the path names. Raises RestError 404 if the group does not exist."""
    try:
        return await cluster.admin.describe_group(group)
    except errors.OdradekError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise RestError(404, GROUP_NOT_FOUND, f"there is no group {group}") from None
        raise


GroupInPath = Annotated[GroupDescription, Depends(group_in_path)]


async def member_in_path(group: GroupInPath, consumer: MemberId) -> GroupMember:
    """Return the group member that the path names. Raises RestError 404 if the group has no member with this id."""
    for member in group.members:
        if member.member_id == consumer:
            return member
    raise RestError(404, 404, f"group {group.group} has no member {consumer}")


MemberInPath = Annotated[GroupMember, Depends(member_in_path)]


@router.get("/consumer-groups", response_model=Collection[GroupResource], responses=ERRORS)
async def list_groups(names: InCluster, cluster: Cluster) -> Response:
    """List all groups."""
    listings = await cluster.admin.list_groups()
    groups = await ask_for_each(listings, lambda listing: group_in_path(listing.group, cluster))
    data = (_group(names, group) for group in groups)
    return names.collection("ConsumerGroup", data, "consumer-groups")


@router.get("/consumer-groups/{group}", response_model=GroupResource, responses=ERRORS)
async def get_group(names: InCluster, group: GroupInPath) -> dict[str, Any]:
    """Return one group."""
    return _group(names, group)


@router.get(
    "/consumer-groups/{group}/consumers",
    response_model=Collection[ConsumerResource],
    responses=ERRORS,
)
async def list_consumers(names: InCluster, group: GroupInPath) -> Response:
    """List the members of a group."""
    data = (_consumer(names, group.group, member) for member in group.members)
    return names.collection("Consumer", data, "consumer-groups", group.group, "consumers")


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}",
    response_model=ConsumerResource,
    responses=ERRORS,
)
async def get_consumer(names: InCluster, group: GroupName, member: MemberInPath) -> dict[str, Any]:
    """Return one member."""
    return _consumer(names, group, member)


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}/assignments",
    response_model=Collection[ConsumerAssignmentResource],
    responses=ERRORS,
)
async def list_assignments(names: InCluster, group: GroupName, member: MemberInPath) -> Response:
    """List the partitions that are assigned to a member."""
    data = (_assignment(names, group, member.member_id, name) for name in member.assignment)
    path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
    return names.collection("ConsumerAssignment", data, *path)


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}/assignments/{topic}/partitions/{partition}",
    response_model=ConsumerAssignmentResource,
    responses=ERRORS,
)
async def get_assignment(
    names: InCluster,
    group: GroupName,
    member: MemberInPath,
    topic: TopicName,
    partition: PartitionId,
) -> dict[str, Any]:
    """Return one partition of a member. The status is 404 if the partition is not assigned to the member."""
    name = TopicPartition(topic, partition)
    if name not in member.assignment:
        raise RestError(404, 404, f"member {member.member_id} of {group} does not own {name}")
    return _assignment(names, group, member.member_id, name)


def _group(names: Names, group: GroupDescription) -> dict[str, Any]:
    path = ("consumer-groups", group.group)
    return {
        "kind": "KafkaConsumerGroup",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "consumer_group_id": group.group,
        "is_simple": not group.members and group.type == "classic" and not group.protocol,
        "partition_assignor": group.protocol,
        "state": group.state.upper(),
        "type": group.type.upper(),
        "coordinator": names.link("brokers", group.coordinator_id),
        "consumers": names.link(*path, "consumers"),
        "lag_summary": names.link(*path, "lag-summary"),
    }


def _consumer(names: Names, group: str, member: GroupMember) -> dict[str, Any]:
    path = ("consumer-groups", group, "consumers", member.member_id)
    return {
        "kind": "KafkaConsumer",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "consumer_group_id": group,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": names.link(*path, "assignments"),
    }


def _assignment(names: Names, group: str, consumer: str, name: TopicPartition) -> dict[str, Any]:
    at = ("consumer-groups", group, "consumers", consumer, "assignments")
    partition = (name.topic, "partitions", name.partition)
    return {
        "kind": "KafkaConsumerAssignment",
        "metadata": {
            "self": names.url(*at, *partition),
            "resource_name": f"{names.metadata(*at[:4])['resource_name']}"
            f"/assignment={name.topic}/partition={name.partition}",
        },
        "cluster_id": names.cluster_id,
        "consumer_group_id": group,
        "consumer_id": consumer,
        "topic_name": name.topic,
        "partition_id": name.partition,
        "partition": names.link("topics", *partition),
        "lag": names.link("consumer-groups", group, "lags", *partition),
    }


class _Lag(NamedTuple):
    """A group's lag in one partition. `member` is the member that reads the partition; None if no member does."""

    partition: TopicPartition
    offset: int
    end: int
    member: GroupMember | None

    @property
    def records(self) -> int:
        """The lag: the number of offsets from the committed offset to the log end offset."""
        return max(0, self.end - self.offset)


@router.get(
    "/consumer-groups/{group}/lags", response_model=Collection[LagResource], responses=ERRORS
)
async def list_lags(names: InCluster, group: GroupInPath, cluster: Cluster) -> Response:
    """List a group's lag for each partition with a committed offset."""
    lags = await _lags(cluster, group)
    data = (_lag(names, group.group, lag) for lag in lags)
    return names.collection("ConsumerLag", data, "consumer-groups", group.group, "lags")


@router.get(
    "/consumer-groups/{group}/lags/{topic}/partitions/{partition}",
    response_model=LagResource,
    responses=ERRORS,
)
async def get_lag(
    names: InCluster,
    group: GroupInPath,
    topic: TopicName,
    partition: PartitionId,
    cluster: Cluster,
) -> dict[str, Any]:
    """Return a group's lag in one partition."""
    name = TopicPartition(topic, partition)
    for lag in await _lags(cluster, group):
        if lag.partition == name:
            return _lag(names, group.group, lag)
    raise RestError(
        404, 404, f"group {group.group} has no committed offset for {topic}-{partition}"
    )


@router.get(
    "/consumer-groups/{group}/lag-summary", response_model=LagSummaryResource, responses=ERRORS
)
async def lag_summary(names: InCluster, group: GroupInPath, cluster: Cluster) -> dict[str, Any]:
    """Return the largest lag that a group has in any partition, and the total lag of all partitions."""
    lags = await _lags(cluster, group)
    worst = max(lags, key=lambda lag: lag.records, default=None)
    member = worst.member if worst else None
    path = ("consumer-groups", group.group, "lag-summary")
    return {
        "kind": "KafkaConsumerGroupLagSummary",
        "metadata": {"self": names.url(*path), "resource_name": None},
        "cluster_id": names.cluster_id,
        "consumer_group_id": group.group,
        "max_lag_consumer_id": member.member_id if member else "",
        "max_lag_instance_id": member.instance_id if member else None,
        "max_lag_client_id": member.client_id if member else "",
        "max_lag_topic_name": worst.partition.topic if worst else "",
        "max_lag_partition_id": worst.partition.partition if worst else -1,
        "max_lag": worst.records if worst else 0,
        "total_lag": sum(lag.records for lag in lags),
    }


async def _lags(cluster: ClusterAccess, group: GroupDescription) -> list[_Lag]:
    """Return the lag of each partition for which the group committed an offset, sorted by topic and partition."""
    offsets = await cluster.admin.group_offsets(group.group)
    # A group may have committed offsets of a topic that has been deleted in the meantime.
    topics = await cluster.admin.list_topics(include_internal=True)
    counts = {topic.name: len(topic.partitions) for topic in topics}
    partitions = sorted(
        [name async for name in in_turns(offsets) if name.partition < counts.get(name.topic, 0)]
    )
    if not partitions:
        return []
    ends = await cluster.admin.list_offsets(dict.fromkeys(partitions, LATEST))
    owners = {name: member for member in group.members for name in member.assignment}
    return [
        _Lag(name, offsets[name], ends[name].offset, owners.get(name))
        async for name in in_turns(partitions)
    ]


def _lag(names: Names, group: str, lag: _Lag) -> dict[str, Any]:
    topic, partition = lag.partition
    path = ("consumer-groups", group, "lags", topic, "partitions", partition)
    member = lag.member
    return {
        "kind": "KafkaConsumerLag",
        "metadata": {"self": names.url(*path), "resource_name": None},
        "cluster_id": names.cluster_id,
        "consumer_group_id": group,
        "topic_name": topic,
        "partition_id": partition,
        "current_offset": lag.offset,
        "log_end_offset": lag.end,
        "lag": lag.records,
        "consumer_id": member.member_id if member else "",
        "instance_id": member.instance_id if member else None,
        "client_id": member.client_id if member else "",
    }
