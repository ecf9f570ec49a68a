"""v3: how far groups are behind."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from odradek.admin.group_admin import GroupDescription, GroupMember
from odradek.offsets import LATEST
from odradek.partitions import TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import RestError
from odradek_gateway.rest.parameters import Cluster, PartitionId, TopicName
from odradek_gateway.rest.v3.groups import GroupInPath
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import Collection, LagResource, LagSummaryResource

router = APIRouter(prefix=PREFIX, tags=["v3 groups"])


@router.get(
    "/consumer-groups/{group}/lags", response_model=Collection[LagResource], responses=ERRORS
)
async def list_lags(names: InCluster, group: GroupInPath, cluster: Cluster) -> dict[str, Any]:
    """How far it is behind, per partition."""
    data = await _lags(names, cluster, group)
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
    """How far it is behind in one partition."""
    for lag in await _lags(names, cluster, group):
        if (lag["topic_name"], lag["partition_id"]) == (topic, partition):
            return lag
    raise RestError(404, 404, f"group {group.group} committed nothing for {topic}-{partition}")


@router.get(
    "/consumer-groups/{group}/lag-summary", response_model=LagSummaryResource, responses=ERRORS
)
async def lag_summary(names: InCluster, group: GroupInPath, cluster: Cluster) -> dict[str, Any]:
    """The largest lag, and the sum of all."""
    lags = await _lags(names, cluster, group)
    worst = max(lags, key=lambda lag: int(lag["lag"]), default=None)
    path = ("consumer-groups", group.group, "lag-summary")
    return {
        "kind": "KafkaConsumerGroupLagSummary",
        "metadata": {"self": names.url(*path), "resource_name": None},
        "cluster_id": names.cluster_id,
        "consumer_group_id": group.group,
        "max_lag_consumer_id": worst["consumer_id"] if worst else "",
        "max_lag_instance_id": worst["instance_id"] if worst else None,
        "max_lag_client_id": worst["client_id"] if worst else "",
        "max_lag_topic_name": worst["topic_name"] if worst else "",
        "max_lag_partition_id": worst["partition_id"] if worst else -1,
        "max_lag": worst["lag"] if worst else 0,
        "total_lag": sum(int(lag["lag"]) for lag in lags),
    }


async def _lags(
    names: Names, cluster: ClusterAccess, group: GroupDescription
) -> list[dict[str, Any]]:
    offsets = await cluster.admin.group_offsets(group.group)
    there_is = {
        TopicPartition(topic.name, one.partition)
        for topic in await cluster.admin.list_topics(include_internal=True)
        for one in topic.partitions
    }  # a group may have committed for a topic that was deleted since
    owners = {name: member for member in group.members for name in member.assignment}
    partitions = sorted(offsets.keys() & there_is)
    if not partitions:
        return []
    ends = await cluster.admin.list_offsets(dict.fromkeys(partitions, LATEST))
    return [
        _lag(names, group.group, name, offsets[name], ends[name].offset, owners.get(name))
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
