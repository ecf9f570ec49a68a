"""v3: consumer groups, their members, and how far they are behind."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path

from odradek import errors
from odradek.admin.group_admin import GroupDescription, GroupMember
from odradek.partitions import TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import GROUP_NOT_FOUND, RestError
from odradek_gateway.rest.request_bodies import cluster_of
from odradek_gateway.rest.schemas import CollectionV3, ResourceV3
from odradek_gateway.rest.v3_cluster import ERRORS
from odradek_gateway.rest.v3_resources import Names, names_of
from odradek_protocol.kafka.error_codes import ErrorCode

router = APIRouter(prefix="/v3/clusters/{cluster_id}", tags=["v3 groups"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
InCluster = Annotated[Names, Depends(names_of)]
Group = Annotated[str, Path(min_length=1, max_length=249)]


@router.get("/consumer-groups", response_model=CollectionV3, responses=ERRORS)
async def list_groups(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """All groups."""
    data = [await _describe(cluster, one.group) for one in await cluster.admin.list_groups()]
    return names.collection("ConsumerGroup", [_group(names, g) for g in data], "consumer-groups")


@router.get("/consumer-groups/{group}", response_model=ResourceV3, responses=ERRORS)
async def get_group(names: InCluster, group: Group, cluster: Cluster) -> dict[str, Any]:
    """One group."""
    return _group(names, await _describe(cluster, group))


@router.get("/consumer-groups/{group}/consumers", response_model=CollectionV3, responses=ERRORS)
async def list_consumers(names: InCluster, group: Group, cluster: Cluster) -> dict[str, Any]:
    """Its members."""
    found = await _describe(cluster, group)
    data = [_consumer(names, group, member) for member in found.members]
    return names.collection("Consumer", data, "consumer-groups", group, "consumers")


@router.get(
    "/consumer-groups/{group}/consumers/{consumer}", response_model=ResourceV3, responses=ERRORS
)
async def get_consumer(
    names: InCluster, group: Group, consumer: str, cluster: Cluster
) -> dict[str, Any]:
    """One member."""
    for member in (await _describe(cluster, group)).members:
        if member.member_id == consumer:
            return _consumer(names, group, member)
    raise RestError(404, 404, f"group {group} has no member {consumer}")


@router.get("/consumer-groups/{group}/lags", response_model=CollectionV3, responses=ERRORS)
async def list_lags(names: InCluster, group: Group, cluster: Cluster) -> dict[str, Any]:
    """How far it is behind, per partition."""
    found = await _describe(cluster, group)
    data = await _lags(names, cluster, found)
    return names.collection("ConsumerLag", data, "consumer-groups", group, "lags")


@router.get(
    "/consumer-groups/{group}/lags/{topic}/partitions/{partition}",
    response_model=ResourceV3,
    responses=ERRORS,
)
async def get_lag(
    names: InCluster, group: Group, topic: str, partition: int, cluster: Cluster
) -> dict[str, Any]:
    """How far it is behind in one partition."""
    for lag in await _lags(names, cluster, await _describe(cluster, group)):
        if (lag["topic_name"], lag["partition_id"]) == (topic, partition):
            return lag
    raise RestError(404, 404, f"group {group} committed nothing for {topic}-{partition}")


@router.get("/consumer-groups/{group}/lag-summary", response_model=ResourceV3, responses=ERRORS)
async def lag_summary(names: InCluster, group: Group, cluster: Cluster) -> dict[str, Any]:
    """The largest lag, and the sum of all."""
    lags = await _lags(names, cluster, await _describe(cluster, group))
    worst = max(lags, key=lambda lag: int(lag["lag"]), default=None)
    path = ("consumer-groups", group, "lag-summary")
    return {
        "kind": "KafkaConsumerGroupLagSummary",
        "metadata": {"self": names.url(*path), "resource_name": None},
        "cluster_id": names.cluster_id,
        "consumer_group_id": group,
        "max_lag_consumer_id": worst["consumer_id"] if worst else "",
        "max_lag_instance_id": worst["instance_id"] if worst else None,
        "max_lag_client_id": worst["client_id"] if worst else "",
        "max_lag_topic_name": worst["topic_name"] if worst else "",
        "max_lag_partition_id": worst["partition_id"] if worst else -1,
        "max_lag": worst["lag"] if worst else 0,
        "total_lag": sum(int(lag["lag"]) for lag in lags),
    }


async def _describe(cluster: ClusterAccess, group: str) -> GroupDescription:
    try:
        return await cluster.admin.describe_group(group)
    except errors.OdradekError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise RestError(404, GROUP_NOT_FOUND, f"there is no group {group}") from None
        raise


async def _lags(
    names: Names, cluster: ClusterAccess, group: GroupDescription
) -> list[dict[str, Any]]:
    offsets = await cluster.admin.group_offsets(group.group)
    owners = {name: member for member in group.members for name in member.assignment}
    partitions = sorted(offsets)
    if not partitions:
        return []
    async with cluster.client.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    return [
        _lag(names, group.group, name, offsets[name], ends[name], owners.get(name))
        for name in partitions
    ]


def _lag(
    names: Names,
    group: str,
    name: TopicPartition,
    offset: int,
    end: int,
    member: GroupMember | None,
) -> dict[str, Any]:
    path = ("consumer-groups", group, "lags", name.topic, "partitions", name.partition)
    return {
        "kind": "KafkaConsumerLag",
        "metadata": {"self": names.url(*path), "resource_name": None},
        "cluster_id": names.cluster_id,
        "consumer_group_id": group,
        "topic_name": name.topic,
        "partition_id": name.partition,
        "current_offset": offset,
        "log_end_offset": end,
        "lag": max(0, end - offset),
        "consumer_id": member.member_id if member else "",
        "instance_id": member.instance_id if member else None,
        "client_id": member.client_id if member else "",
    }


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
