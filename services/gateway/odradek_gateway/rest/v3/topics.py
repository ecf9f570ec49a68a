"""The v3 routes that list, create, describe, extend and delete topics."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from odradek.admin.descriptions import TopicDescription
from odradek_gateway.cluster_access import INTERNAL_TOPICS
from odradek_gateway.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.requests import INT32_MAX, Cluster, JsonBody, TopicName
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import Collection, TopicResource
from odradek_protocol.topic_names import TOPIC_NAME_PATTERN

router = APIRouter(prefix=PREFIX, tags=["v3 topics"])
_NOT_ZERO: Final = {"not": {"const": 0}}
_BrokerId = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class NamedValue(msgspec.Struct):
    """A config and its value."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    value: str | None = None


class ReplicasAssignment(msgspec.Struct):
    """The brokers of a partition's replicas. The first one is the preferred leader."""

    partition_id: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
    broker_ids: Annotated[list[_BrokerId], msgspec.Meta(min_length=1)]


class CreateTopicRequest(msgspec.Struct):
    """A topic to create; -1 means the cluster's default. With `replicas_assignments`, leave out `partitions_count` and
    `replication_factor`.
    """

    topic_name: Annotated[str, msgspec.Meta(pattern=TOPIC_NAME_PATTERN)]
    partitions_count: Annotated[
        int, msgspec.Meta(ge=-1, le=10_000, extra_json_schema=_NOT_ZERO)
    ] = -1
    replication_factor: Annotated[
        int, msgspec.Meta(ge=-1, le=32_767, extra_json_schema=_NOT_ZERO)
    ] = -1
    replicas_assignments: list[ReplicasAssignment] = []
    configs: list[NamedValue] = []
    validate_only: bool = False


class UpdatePartitionsRequest(msgspec.Struct):
    """The new number of partitions; it must be higher than the current number."""

    partitions_count: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


_CREATE = JsonBody(CreateTopicRequest, example={"topic_name": "greetings", "partitions_count": 3})
_UPDATE = JsonBody(UpdatePartitionsRequest, example={"partitions_count": 6})


@router.get("/topics", response_model=Collection[TopicResource], responses=ERRORS)
async def list_topics(names: InCluster, cluster: Cluster) -> Response:
    """List all topics."""
    topics = await cluster.topics()
    return names.collection("Topic", (_topic(names, topic) for topic in topics), "topics")


@router.post(
    "/topics",
    response_model=TopicResource,
    status_code=201,
    responses={**ERRORS, 200: {"model": TopicResource}},
    openapi_extra=_CREATE.openapi,
)
async def create_topic(names: InCluster, request: Request, cluster: Cluster) -> Response:
    """Create a topic. With `validate_only` the request is only checked, and the status is 200."""
    body = await _CREATE.read(request)
    for count in ("partitions_count", "replication_factor"):
        if getattr(body, count) == 0:
            # In a gRPC request, 0 means that a field is not set, so the controller would use the cluster's default.
            words = f"{count} must be 1 or more, or -1 for the cluster's default"
            raise RestError(400, 40002, words)
    outcome = await cluster.admin.create_topic(
        body.topic_name,
        partitions=body.partitions_count,
        replication_factor=body.replication_factor,
        assignments=_assignments(body.replicas_assignments),
        configs={c.name: c.value for c in body.configs if c.value is not None},
        validate_only=body.validate_only,
    )
    if body.validate_only:
        would_be = TopicDescription(
            name=body.topic_name, topic_id=b"", is_internal=False, partitions=()
        )
        counts = {
            "partitions_count": outcome.partitions,
            "replication_factor": outcome.replication_factor,
        }
        return JSONResponse(_topic(names, would_be) | counts, 200)
    created = _topic(names, await cluster.admin.describe_topic(body.topic_name))
    return JSONResponse(created, 201, headers={"Location": created["metadata"]["self"]})


@router.get("/topics/{topic}", response_model=TopicResource, responses=ERRORS)
async def get_topic(names: InCluster, topic: TopicName, cluster: Cluster) -> dict[str, Any]:
    """Describe one topic."""
    return _topic(names, await cluster.admin.describe_topic(topic))


@router.patch(
    "/topics/{topic}",
    response_model=TopicResource,
    responses=ERRORS,
    openapi_extra=_UPDATE.openapi,
)
async def update_topic(
    names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> dict[str, Any]:
    """Add partitions to a topic, and return the topic."""
    body = await _UPDATE.read(request)
    await cluster.admin.add_partitions(topic, body.partitions_count)
    return _topic(names, await cluster.admin.describe_topic(topic))


@router.delete("/topics/{topic}", status_code=204, responses=ERRORS)
async def delete_topic(_names: InCluster, topic: TopicName, cluster: Cluster) -> Response:
    """Delete a topic."""
    await cluster.admin.delete_topic(topic)
    return Response(status_code=204)


def _assignments(given: list[ReplicasAssignment]) -> list[list[int]]:
    by_partition = {replicas.partition_id: replicas.broker_ids for replicas in given}
    if len(by_partition) < len(given) or sorted(by_partition) != list(range(len(given))):
        raise RestError(
            422,
            BAD_PAYLOAD,
            "replicas_assignments must name each of the partitions 0, 1, ... exactly once",
        )
    return [by_partition[partition] for partition in range(len(given))]


def _topic(names: Names, topic: TopicDescription) -> dict[str, Any]:
    path = ("topics", topic.name)
    return {
        "kind": "KafkaTopic",
        "metadata": names.metadata(*path),
        "cluster_id": names.cluster_id,
        "topic_name": topic.name,
        "is_internal": topic.is_internal or topic.name in INTERNAL_TOPICS,
        "replication_factor": max((len(p.replicas) for p in topic.partitions), default=0),
        "partitions_count": len(topic.partitions),
        "partitions": names.link(*path, "partitions"),
        "configs": names.link(*path, "configs"),
        "partition_reassignments": names.link(*path, "partitions", "-", "reassignment"),
        "authorized_operations": [],
    }
