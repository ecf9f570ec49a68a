"""v3: consumer groups, their members, and what these own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from odradek import errors
from odradek.admin.group_admin import GroupDescription, GroupMember
from odradek.partitions import TopicPartition
from odradek_gateway.rest.errors import GROUP_NOT_FOUND, RestError
from odradek_gateway.rest.parameters import Cluster, GroupName, MemberId, PartitionId, TopicName
from odradek_gateway.rest.v3.concurrently import ask_for_each
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import (
    Collection,
    ConsumerAssignmentResource,
    ConsumerResource,
    GroupResource,
)
from odradek_protocol.kafka.error_codes import ErrorCode

router = APIRouter(prefix=PREFIX, tags=["v3 groups"])


async def group_in_path(group: GroupName, cluster: Cluster) -> GroupDescription:
    """404 for a group that there is not."""
    try:
        return await cluster.admin.describe_group(group)
    except errors.OdradekError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise RestError(404, GROUP_NOT_FOUND, f"there is no group {group}") from None
        raise


GroupInPath = Annotated[GroupDescription, Depends(group_in_path)]


async def member_in_path(group: GroupInPath, consumer: MemberId) -> GroupMember:
    """404 for a member that there is not."""
    for member in group.members:
        if member.member_id == consumer:
            return member
    raise RestError(404, 404, f"group {group.group} has no member {consumer}")


MemberInPath = Annotated[GroupMember, Depends(member_in_path)]


@router.get("/consumer-groups", response_model=Collection[GroupResource], responses=ERRORS)
async def list_groups(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """All groups."""
    listed = [one.group for one in await cluster.admin.list_groups()]
    groups = await ask_for_each(listed, lambda group: group_in_path(group, cluster))
    data = [_group(names, group) for group in groups]
    return names.collection("ConsumerGroup", data, "consumer-groups")


@router.get("/consumer-groups/{group}", response_model=GroupResource, responses=ERRORS)
async def get_group(names: InCluster, group: GroupInPath) -> dict[str, Any]:
    """One group."""
    return _group(names, group)


@router.get(
    "/consumer-groups/{group}/consumers",
    response_model=Collection[ConsumerResource],
    responses=ERRORS,
)
async def list_consumers(names: InCluster, group: GroupInPath) -> dict[str, Any]:
    """Its members."""
    data = [_consumer(names, group.group, member) for member in group.members]
    return names.collection("Consumer", data, "consumer-groups", group.group, "consumers")


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}",
    response_model=ConsumerResource,
    responses=ERRORS,
)
async def get_consumer(names: InCluster, group: GroupName, member: MemberInPath) -> dict[str, Any]:
    """One member."""
    return _consumer(names, group, member)


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}/assignments",
    response_model=Collection[ConsumerAssignmentResource],
    responses=ERRORS,
)
async def list_assignments(
    names: InCluster, group: GroupName, member: MemberInPath
) -> dict[str, Any]:
    """What a member owns."""
    data = [_assignment(names, group, member.member_id, name) for name in member.assignment]
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
    """One partition that a member owns."""
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
