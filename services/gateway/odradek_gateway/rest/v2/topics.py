"""The v2 routes of topics, partitions, offsets and brokers, and of producing records.

The response to a produce request has one result for each record. Its status is 200 even if records failed, except 401
and 403 if the caller may not write to the topic.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from odradek.cluster.metadata_cache import Partition
from odradek.cluster.turns import slices_in_turns
from odradek.partitions import TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import PARTITION_NOT_FOUND, errors_of
from odradek_gateway.rest.media_types import accepted_without_records, embedded_format
from odradek_gateway.rest.records import (
    FORMATS,
    RecordFailure,
    require_partition,
    send_all,
)
from odradek_gateway.rest.requests import Cluster, PartitionId, TopicName, describe_partition
from odradek_gateway.rest.responses import encode, json_list, json_object
from odradek_gateway.rest.v2.shapes import (
    BrokerIds,
    PartitionOffsets,
    PartitionV2,
    ProduceResult,
    TopicV2,
)

router = APIRouter(tags=["v2"])
_ERRORS = errors_of(401, 403, 404, 406, 422, 429, 500, 503)
# Up to this many results are sent in one piece with a Content-Length, for clients with a simple HTTP parser. To encode
# them takes less than 3 ms.
_OUTCOMES_AT_ONCE = 5_000


def media_type_of(request: Request) -> str:
    """Return the media type for a response without records that the client prefers. Raises RestError 406 if it accepts
    none.
    """
    return accepted_without_records(request.headers.get("accept"))


def json_response(content: Any, request: Request) -> Response:
    """Return a short JSON response with the media type that the client prefers. Raises RestError 406 if it accepts
    none.
    """
    return Response(encode(content), media_type=media_type_of(request))


@router.get("/", response_model=dict[str, str], responses=errors_of(406, 429))
async def root(request: Request) -> Response:
    """Return an empty object, as Confluent's REST proxy does. A browser is redirected to /docs."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("docs", status_code=303)
    return json_response({}, request)


@router.get("/topics", response_model=list[str], responses=_ERRORS)
async def list_topics(cluster: Cluster, request: Request) -> Response:
    """List the names of all topics."""
    names = sorted(topic.name for topic in await cluster.topics())
    return json_list(names, media_type=media_type_of(request))


@router.get("/topics/{topic}", response_model=TopicV2, responses=_ERRORS)
async def get_topic(topic: TopicName, cluster: Cluster, request: Request) -> Response:
    """Describe a topic with its configs and partitions."""
    described = await cluster.admin.describe_topic(topic)
    configs = await cluster.admin.describe_topic_configs(topic)
    fields = {
        "name": topic,
        "configs": {name: config.value for name, config in sorted(configs.items())},
    }
    partitions = map(_partition, described.partitions)
    return json_object(fields, "partitions", partitions, media_type=media_type_of(request))


@router.get("/topics/{topic}/partitions", response_model=list[PartitionV2], responses=_ERRORS)
async def list_partitions(topic: TopicName, cluster: Cluster, request: Request) -> Response:
    """List the partitions of a topic."""
    described = await cluster.admin.describe_topic(topic)
    return json_list(map(_partition, described.partitions), media_type=media_type_of(request))


@router.get("/topics/{topic}/partitions/{partition}", response_model=PartitionV2, responses=_ERRORS)
async def get_partition(
    topic: TopicName, partition: PartitionId, cluster: Cluster, request: Request
) -> Response:
    """Describe one partition."""
    described = await describe_partition(cluster, topic, partition, error_code=PARTITION_NOT_FOUND)
    return json_response(_partition(described), request)


@router.get(
    "/topics/{topic}/partitions/{partition}/offsets",
    response_model=PartitionOffsets,
    responses=_ERRORS,
)
async def get_offsets(
    topic: TopicName, partition: PartitionId, cluster: Cluster, request: Request
) -> Response:
    """Return the log start offset and the log end offset (exclusive) of a partition."""
    await describe_partition(cluster, topic, partition, error_code=PARTITION_NOT_FOUND)
    beginning, end = await cluster.offset_bounds(TopicPartition(topic, partition))
    body = {"beginning_offset": beginning, "end_offset": end}
    return json_response(body, request)


@router.get("/brokers", response_model=BrokerIds, responses=_ERRORS)
async def list_brokers(cluster: Cluster, request: Request) -> Response:
    """List the ids of the live brokers."""
    brokers = await cluster.admin.list_brokers()
    return json_response({"brokers": sorted(broker.broker_id for broker in brokers)}, request)


def _partition(partition: Partition) -> dict[str, Any]:
    leader = partition.leader_id
    return {
        "partition": partition.partition,
        "leader": leader,
        "replicas": [
            {"broker": broker, "leader": broker == leader, "in_sync": broker in partition.isr}
            for broker in partition.replicas
        ],
    }


_PRODUCE_ERRORS = errors_of(400, 401, 403, 404, 406, 408, 413, 415, 422, 429, 500, 503)
_BODIES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            name: content
            # JSON is the first example, because most readers of the docs page try the first one.
            for form in reversed([*FORMATS.values()])
            for name, content in form.body.openapi["requestBody"]["content"].items()
        },
    }
}


class _Outcome(msgspec.Struct, gc=False):
    """The result of one record, as `shapes.RecordResult` describes it."""

    partition: int | None = None
    offset: int | None = None
    error_code: int | None = None
    error: str | None = None


@router.post(
    "/topics/{topic}",
    response_model=ProduceResult,
    responses=_PRODUCE_ERRORS,
    openapi_extra=_BODIES,
)
async def produce_to_topic(topic: TopicName, request: Request, cluster: Cluster) -> Response:
    """Produce records to a topic. A record that names no partition goes to the partition that its key determines."""
    return await _produce(topic, None, request, cluster)


@router.post(
    "/topics/{topic}/partitions/{partition}",
    response_model=ProduceResult,
    responses=_PRODUCE_ERRORS,
    openapi_extra=_BODIES,
)
async def produce_to_partition(
    topic: TopicName, partition: PartitionId, request: Request, cluster: Cluster
) -> Response:
    """Produce records to one partition."""
    return await _produce(topic, partition, request, cluster)


async def _produce(
    topic: str, partition: int | None, request: Request, cluster: ClusterAccess
) -> Response:
    headers = request.headers
    media_type = accepted_without_records(headers.get("accept"))
    form = FORMATS[embedded_format(headers.get("content-type"))]
    body = await form.records.read(request)
    records = [form.outgoing(record) async for some in slices_in_turns(body) for record in some]
    producer = cluster.producer
    count = await require_partition(producer, topic, partition)
    if partition is not None:
        records = [
            record._replace(partition=partition)
            async for some in slices_in_turns(records)
            for record in some
        ]
    outcomes: list[_Outcome] = []
    status = 200
    async for some in slices_in_turns(await send_all(producer, topic, records, count)):
        for outcome in some:
            if isinstance(outcome, RecordFailure):
                outcomes.append(_Outcome(None, None, outcome.error_code, outcome.message))
                if outcome.status in (401, 403):
                    status = outcome.status
            else:
                outcomes.append(_Outcome(outcome.partition, outcome.offset))
    schemas = {"key_schema_id": None, "value_schema_id": None}
    response = json_object(
        schemas, "offsets", outcomes, media_type=media_type, items_at_once=_OUTCOMES_AT_ONCE
    )
    response.status_code = status
    return response
