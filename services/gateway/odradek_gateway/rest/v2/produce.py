"""v2: records into a topic or a partition. Every record has its own outcome inside 200."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.embedded_formats import FORMATS
from odradek_gateway.rest.errors import errors_of
from odradek_gateway.rest.media_types import accepted_without_records, embedded_format
from odradek_gateway.rest.parameters import Cluster, PartitionId, TopicName
from odradek_gateway.rest.produce import RecordFailure, require_partition, send_all
from odradek_gateway.rest.v2.shapes import ProduceResult

router = APIRouter(tags=["v2"])
_ERRORS = errors_of(400, 401, 403, 404, 406, 408, 413, 415, 422, 429, 500, 503)
_BODIES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            name: content
            for form in FORMATS.values()
            for name, content in form.body.openapi["requestBody"]["content"].items()
        },
    }
}


class _Outcome(msgspec.Struct, gc=False):
    """What became of one record."""

    partition: int | None = None
    offset: int | None = None
    error_code: int | None = None
    error: str | None = None


class _Outcomes(msgspec.Struct):
    offsets: list[_Outcome]
    key_schema_id: int | None = None
    value_schema_id: int | None = None


_encode = msgspec.json.Encoder().encode


@router.post(
    "/topics/{topic}", response_model=ProduceResult, responses=_ERRORS, openapi_extra=_BODIES
)
async def produce_to_topic(topic: TopicName, request: Request, cluster: Cluster) -> Response:
    """Records to the partitions that their keys, or they themselves, choose."""
    return await _produce(topic, None, request, cluster)


@router.post(
    "/topics/{topic}/partitions/{partition}",
    response_model=ProduceResult,
    responses=_ERRORS,
    openapi_extra=_BODIES,
)
async def produce_to_partition(
    topic: TopicName, partition: PartitionId, request: Request, cluster: Cluster
) -> Response:
    """Records to one partition."""
    return await _produce(topic, partition, request, cluster)


async def _produce(
    topic: str, partition: int | None, request: Request, cluster: ClusterAccess
) -> Response:
    headers = request.headers
    media_type = accepted_without_records(headers.get("accept"))
    form = FORMATS[embedded_format(headers.get("content-type"))]
    records = form.outgoing(await form.body.read(request))
    producer = cluster.producer
    count = await require_partition(producer, topic, partition)
    if partition is not None:
        records = [record._replace(partition=partition) for record in records]
    told: list[_Outcome] = []
    status = 200
    for outcome in await send_all(producer, topic, records, count):
        if isinstance(outcome, RecordFailure):
            told.append(_Outcome(None, None, outcome.error_code, outcome.message))
            if outcome.status in (401, 403):
                status = outcome.status
        else:
            told.append(_Outcome(outcome.partition, outcome.offset))
    return Response(_encode(_Outcomes(told)), status, media_type=media_type)
