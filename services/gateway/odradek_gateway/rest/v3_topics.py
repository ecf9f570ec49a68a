"""v3: topics, their configs, partitions and replicas."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from odradek.admin.descriptions import TopicDescription
from odradek.cluster.metadata_cache import Partition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import PARTITION_NOT_FOUND, RestError
from odradek_gateway.rest.request_bodies import cluster_of
from odradek_gateway.rest.schemas import CollectionV3, ResourceV3
from odradek_gateway.rest.v3_cluster import ERRORS
from odradek_gateway.rest.v3_configs import config_resource, find_config
from odradek_gateway.rest.v3_resources import Names, names_of

router = APIRouter(prefix="/v3/clusters/{cluster_id}", tags=["v3 topics"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
InCluster = Annotated[Names, Depends(names_of)]
TopicName = Annotated[str, Path(min_length=1, max_length=249)]
PartitionId = Annotated[int, Path(ge=0, le=2**31 - 1)]


class NamedValue(BaseModel):
    """A config to be set."""

    name: str
    value: str | None = None


class CreateTopicRequest(BaseModel):
    """A topic to be."""

    topic_name: str = Field(min_length=1, max_length=249)
    partitions_count: int = Field(default=-1, ge=-1, le=10_000)
    replication_factor: int = Field(default=-1, ge=-1, le=32)
    configs: list[NamedValue] = []
    validate_only: bool = False


class UpdatePartitionsRequest(BaseModel):
    """More partitions."""

    partitions_count: int = Field(ge=1, le=10_000)


class UpdateConfigRequest(BaseModel):
    """A value."""

    value: str


class AlterConfigItem(BaseModel):
    """One change; operation SET or DELETE."""

    name: str
    value: str | None = None
    operation: str = "SET"


class AlterConfigsRequest(BaseModel):
    """Changes, all or none."""

    data: list[AlterConfigItem] = Field(min_length=1)
    validate_only: bool = False


@router.get("/topics", response_model=CollectionV3, responses=ERRORS)
async def list_topics(names: InCluster, cluster: Cluster) -> dict[str, Any]:
    """All topics."""
    topics = await cluster.admin.list_topics()
    return names.collection("Topic", [_topic(names, topic) for topic in topics], "topics")


@router.post(
    "/topics",
    response_model=ResourceV3,
    status_code=201,
    responses={**ERRORS, 200: {"model": ResourceV3}},
)
async def create_topic(names: InCluster, body: CreateTopicRequest, cluster: Cluster) -> Response:
    """Create a topic; 200 with validate_only."""
    await cluster.admin.create_topic(
        body.topic_name,
        partitions=body.partitions_count,
        replication_factor=body.replication_factor,
        configs={c.name: c.value for c in body.configs if c.value is not None},
        validate_only=body.validate_only,
    )
    if body.validate_only:
        described = TopicDescription(
            name=body.topic_name, topic_id=b"", is_internal=False, partitions=()
        )
        return JSONResponse(_topic(names, described), 200)
    described = await cluster.admin.describe_topic(body.topic_name)
    created = _topic(names, described)
    return JSONResponse(created, 201, headers={"Location": created["metadata"]["self"]})


@router.get("/topics/{topic}", response_model=ResourceV3, responses=ERRORS)
async def get_topic(names: InCluster, topic: TopicName, cluster: Cluster) -> dict[str, Any]:
    """One topic."""
    return _topic(names, await cluster.admin.describe_topic(topic))


@router.patch("/topics/{topic}", response_model=ResourceV3, responses=ERRORS)
async def update_topic(
    names: InCluster, topic: TopicName, body: UpdatePartitionsRequest, cluster: Cluster
) -> dict[str, Any]:
    """Add partitions."""
    await cluster.admin.add_partitions(topic, body.partitions_count)
    return _topic(names, await cluster.admin.describe_topic(topic))


@router.delete("/topics/{topic}", status_code=204, responses=ERRORS)
async def delete_topic(names: InCluster, topic: TopicName, cluster: Cluster) -> Response:
    """Delete a topic."""
    await cluster.admin.delete_topic(topic)
    return Response(status_code=204)


# --- configs -----------------------------------------------------------------------------------


@router.get("/topics/{topic}/configs", response_model=CollectionV3, responses=ERRORS)
async def list_configs(names: InCluster, topic: TopicName, cluster: Cluster) -> dict[str, Any]:
    """Configs of a topic."""
    configs = await cluster.admin.describe_topic_configs(topic)
    path = ("topics", topic, "configs")
    data = [
        config_resource(names, "TopicConfig", c, *path, topic_name=topic) for c in configs.values()
    ]
    return names.collection("TopicConfig", data, *path)


@router.post("/topics/{topic}/configs:alter", status_code=204, responses=ERRORS)
async def alter_configs(
    names: InCluster, topic: TopicName, body: AlterConfigsRequest, cluster: Cluster
) -> Response:
    """Set and delete several, all or none."""
    changes, gone = {}, []
    for item in body.data:
        if item.operation == "DELETE":
            gone.append(item.name)
        elif item.operation == "SET" and item.value is not None:
            changes[item.name] = item.value
        else:
            raise RestError(400, 400, f"{item.name}: SET with a value, or DELETE")
    if body.validate_only:
        await cluster.admin.describe_topic(topic)
    else:
        await cluster.admin.alter_topic_configs(topic, set=changes, delete=gone)
    return Response(status_code=204)


@router.get("/topics/{topic}/configs/{name}", response_model=ResourceV3, responses=ERRORS)
async def get_config(
    names: InCluster, topic: TopicName, name: str, cluster: Cluster
) -> dict[str, Any]:
    """One config."""
    found = find_config(await cluster.admin.describe_topic_configs(topic), name)
    return config_resource(
        names, "TopicConfig", found, "topics", topic, "configs", topic_name=topic
    )


@router.put("/topics/{topic}/configs/{name}", status_code=204, responses=ERRORS)
async def set_config(
    names: InCluster, topic: TopicName, name: str, body: UpdateConfigRequest, cluster: Cluster
) -> Response:
    """Set one."""
    find_config(await cluster.admin.describe_topic_configs(topic), name)
    await cluster.admin.alter_topic_configs(topic, set={name: body.value})
    return Response(status_code=204)


@router.delete("/topics/{topic}/configs/{name}", status_code=204, responses=ERRORS)
async def reset_config(names: InCluster, topic: TopicName, name: str, cluster: Cluster) -> Response:
    """Back to its default."""
    find_config(await cluster.admin.describe_topic_configs(topic), name)
    await cluster.admin.alter_topic_configs(topic, delete=[name])
    return Response(status_code=204)


# --- partitions ----------------------------------------------------------------------------------


@router.get("/topics/{topic}/partitions", response_model=CollectionV3, responses=ERRORS)
async def list_partitions(names: InCluster, topic: TopicName, cluster: Cluster) -> dict[str, Any]:
    """Partitions of a topic."""
    described = await cluster.admin.describe_topic(topic)
    data = [_partition(names, topic, p) for p in described.partitions]
    return names.collection("Partition", data, "topics", topic, "partitions")


@router.get("/topics/{topic}/partitions/{partition}", response_model=ResourceV3, responses=ERRORS)
async def get_partition(
    names: InCluster, topic: TopicName, partition: PartitionId, cluster: Cluster
) -> dict[str, Any]:
    """One partition."""
    return _partition(names, topic, await _find(cluster, topic, partition))


@router.get(
    "/topics/{topic}/partitions/{partition}/replicas",
    response_model=CollectionV3,
    responses=ERRORS,
)
async def list_replicas(
    names: InCluster, topic: TopicName, partition: PartitionId, cluster: Cluster
) -> dict[str, Any]:
    """Replicas of a partition."""
    found = await _find(cluster, topic, partition)
    data = [replica_resource(names, topic, found, broker) for broker in found.replicas]
    return names.collection("Replica", data, "topics", topic, "partitions", partition, "replicas")


@router.get(
    "/topics/{topic}/partitions/{partition}/replicas/{broker_id}",
    response_model=ResourceV3,
    responses=ERRORS,
)
async def get_replica(
    names: InCluster,
    topic: TopicName,
    partition: PartitionId,
    broker_id: Annotated[int, Path(ge=0, le=2**31 - 1)],
    cluster: Cluster,
) -> dict[str, Any]:
    """One replica."""
    found = await _find(cluster, topic, partition)
    if broker_id not in found.replicas:
        raise RestError(404, 404, f"broker {broker_id} has no replica of {topic}-{partition}")
    return replica_resource(names, topic, found, broker_id)


async def _find(cluster: ClusterAccess, topic: str, partition: int) -> Partition:
    described = await cluster.admin.describe_topic(topic)
    if partition >= len(described.partitions):
        raise RestError(404, PARTITION_NOT_FOUND, f"topic {topic} has no partition {partition}")
    return described.partitions[partition]


def _topic(names: Names, topic: TopicDescription) -> dict[str, Any]:
    path = ("topics", topic.name)
    return {
        "kind": "KafkaTopic",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "topic_name": topic.name,
        "is_internal": topic.is_internal,
        "replication_factor": max((len(p.replicas) for p in topic.partitions), default=0),
        "partitions_count": len(topic.partitions),
        "partitions": names.link(*path, "partitions"),
        "configs": names.link(*path, "configs"),
        "partition_reassignments": names.link(*path, "partitions", "-", "reassignment"),
        "authorized_operations": [],
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
    """One replica of a partition."""
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
