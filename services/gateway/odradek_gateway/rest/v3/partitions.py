"""The v3 routes of partitions: offsets, replicas, and reassignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from odradek.admin.descriptions import TopicDescription
from odradek.cluster.metadata_cache import Partition
from odradek.partitions import TopicPartition
from odradek_gateway.errors import RestError
from odradek_gateway.rest.requests import (
    BrokerId,
    Cluster,
    PartitionId,
    TopicName,
    describe_partition,
)
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import (
    Collection,
    PartitionOffsetResource,
    PartitionResource,
    ReassignmentResource,
    ReplicaResource,
)

router = APIRouter(prefix=PREFIX, tags=["v3 partitions"])


async def partition_in_path(
    topic: TopicName, partition: PartitionId, cluster: Cluster
) -> Partition:
    """Return the partition that the path names. Raises 404 if the topic or the partition does not exist."""
    return await describe_partition(cluster, topic, partition, error_code=404)


InPath = Annotated[Partition, Depends(partition_in_path)]


# The routes of reassignments come first, because the path of a single partition matches `-`, too.
@router.get(
    "/topics/-/partitions/-/reassignment",
    response_model=Collection[ReassignmentResource],
    responses=ERRORS,
)
async def list_all_reassignments(names: InCluster, cluster: Cluster) -> Response:
    """List the partitions of all topics that are being reassigned to other replicas."""
    topics = await cluster.admin.list_topics(include_internal=True)
    path = ("topics", "-", "partitions", "-", "reassignment")
    return names.collection("Reassignment", _reassignments(names, topics), *path)


@router.get(
    "/topics/{topic}/partitions/-/reassignment",
    response_model=Collection[ReassignmentResource],
    responses=ERRORS,
)
async def list_reassignments(names: InCluster, topic: TopicName, cluster: Cluster) -> Response:
    """List the partitions of a topic that are being reassigned to other replicas."""
    described = await cluster.admin.describe_topic(topic)
    path = ("topics", topic, "partitions", "-", "reassignment")
    return names.collection("Reassignment", _reassignments(names, [described]), *path)


@router.get(
    "/topics/{topic}/partitions/{partition}/reassignment",
    response_model=ReassignmentResource,
    responses=ERRORS,
)
async def get_reassignment(names: InCluster, topic: TopicName, partition: InPath) -> dict[str, Any]:
    """Return the reassignment of one partition. The status is 404 if the partition is not being reassigned."""
    if not _is_reassigned(partition):
        raise RestError(404, 404, f"{topic}-{partition.partition} is not being reassigned")
    return _reassignment(names, topic, partition)


@router.get(
    "/topics/{topic}/partitions", response_model=Collection[PartitionResource], responses=ERRORS
)
async def list_partitions(names: InCluster, topic: TopicName, cluster: Cluster) -> Response:
    """List the partitions of a topic."""
    described = await cluster.admin.describe_topic(topic)
    data = (_partition(names, topic, p) for p in described.partitions)
    return names.collection("Partition", data, "topics", topic, "partitions")


@router.get(
    "/topics/{topic}/partitions/{partition}", response_model=PartitionResource, responses=ERRORS
)
async def get_partition(names: InCluster, topic: TopicName, partition: InPath) -> dict[str, Any]:
    """Return one partition."""
    return _partition(names, topic, partition)


@router.get(
    "/topics/{topic}/partitions/{partition}/offset",
    response_model=PartitionOffsetResource,
    responses=ERRORS,
)
async def get_offset(
    names: InCluster, topic: TopicName, partition: InPath, cluster: Cluster
) -> dict[str, Any]:
    """Return the partition's log start offset and log end offset (exclusive)."""
    earliest, latest = await cluster.offset_bounds(TopicPartition(topic, partition.partition))
    path = ("topics", topic, "partitions", partition.partition)
    return {
        "kind": "KafkaPartitionOffset",
        "metadata": {**names.metadata(*path), "self": names.url(*path, "offset")},
        "cluster_id": names.cluster_id,
        "topic_name": topic,
        "partition_id": partition.partition,
        "earliest_offset": earliest,
        "latest_offset": latest,
    }


@router.get(
    "/topics/{topic}/partitions/{partition}/replicas",
    response_model=Collection[ReplicaResource],
    responses=ERRORS,
)
async def list_replicas(names: InCluster, topic: TopicName, partition: InPath) -> Response:
    """List the replicas of a partition."""
    data = [replica_resource(names, topic, partition, broker) for broker in partition.replicas]
    path = ("topics", topic, "partitions", partition.partition, "replicas")
    return names.collection("Replica", data, *path)


@router.get(
    "/topics/{topic}/partitions/{partition}/replicas/{broker_id}",
    response_model=ReplicaResource,
    responses=ERRORS,
)
async def get_replica(
    names: InCluster, topic: TopicName, partition: InPath, broker_id: BrokerId
) -> dict[str, Any]:
    """Return one replica."""
    if broker_id not in partition.replicas:
        words = f"broker {broker_id} has no replica of {topic}-{partition.partition}"
        raise RestError(404, 404, words)
    return replica_resource(names, topic, partition, broker_id)


def _is_reassigned(partition: Partition) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def _reassignments(names: Names, topics: Iterable[TopicDescription]) -> Iterator[dict[str, Any]]:
    return (
        _reassignment(names, topic.name, partition)
        for topic in topics
        for partition in topic.partitions
        if _is_reassigned(partition)
    )


def _reassignment(names: Names, topic: str, partition: Partition) -> dict[str, Any]:
    path = ("topics", topic, "partitions", partition.partition)
    return {
        "kind": "KafkaReassignment",
        "metadata": {
            "self": names.url(*path, "reassignment"),
            "resource_name": f"{names.metadata(*path)['resource_name']}/reassignment",
        },
        "cluster_id": names.cluster_id,
        "topic_name": topic,
        "partition_id": partition.partition,
        "adding_replicas": list(partition.adding_replicas),
        "removing_replicas": list(partition.removing_replicas),
        "replicas": names.link(*path, "replicas"),
    }


def _partition(names: Names, topic: str, partition: Partition) -> dict[str, Any]:
    path = ("topics", topic, "partitions", partition.partition)
    leader = (
        names.link(*path, "replicas", partition.leader_id) if partition.leader_id >= 0 else None
    )
    return {
        "kind": "KafkaPartition",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "topic_name": topic,
        "partition_id": partition.partition,
        "leader": leader,
        "replicas": names.link(*path, "replicas"),
        "reassignment": names.link(*path, "reassignment"),
    }


def replica_resource(names: Names, topic: str, partition: Partition, broker: int) -> dict[str, Any]:
    """Return a replica as a v3 resource."""
    path = ("topics", topic, "partitions", partition.partition, "replicas", broker)
    return {
        "kind": "KafkaReplica",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "topic_name": topic,
        "partition_id": partition.partition,
        "broker_id": broker,
        "is_leader": broker == partition.leader_id,
        "is_in_sync": broker in partition.isr,
        "broker": names.link("brokers", broker),
    }
