"""v2: topics, partitions, brokers, and produce."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.responses import Response

from odradek.admin.descriptions import TopicDescription
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.embedded_formats import FORMATS
from odradek_gateway.rest.errors import BAD_PAYLOAD, PARTITION_NOT_FOUND, RestError
from odradek_gateway.rest.media_types import PLAIN, V2, accepted, embedded_format
from odradek_gateway.rest.produce import (
    Headers,
    OutgoingRecord,
    RecordFailure,
    require_partition,
    send_all,
)
from odradek_gateway.rest.request_bodies import cluster_of, read_json
from odradek_gateway.rest.schemas import (
    BrokerIds,
    Error,
    PartitionOffsets,
    PartitionV2,
    ProduceResultV2,
    TopicV2,
)

router = APIRouter(tags=["v2"])
TopicName = Annotated[str, Path(min_length=1, max_length=249)]
PartitionId = Annotated[int, Path(ge=0, le=2**31 - 1)]
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
Accept = Annotated[str | None, Header()]
_OFFERED = (V2, PLAIN)
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 404, 406, 422, 429, 500, 503)
}
_PRODUCE_ERRORS: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    401: {"model": Error},
    403: {"model": Error},
    413: {"model": Error},
    415: {"model": Error},
}
_RECORDS_MAX = 50_000


def answer(content: Any, accept: str | None, status: int = 200) -> Response:
    """JSON under the media type that the client accepts best."""
    return Response(orjson.dumps(content), status, media_type=accepted(accept, _OFFERED))


@router.get("/topics", response_model=list[str], responses=_ERRORS)
async def list_topics(cluster: Cluster, accept: Accept = None) -> Response:
    """Names of all topics."""
    topics = await cluster.admin.list_topics()
    return answer(sorted(topic.name for topic in topics), accept)


@router.get("/topics/{topic}", response_model=TopicV2, responses=_ERRORS)
async def get_topic(topic: TopicName, cluster: Cluster, accept: Accept = None) -> Response:
    """A topic with its configs and partitions."""
    described = await cluster.admin.describe_topic(topic)
    configs = await cluster.admin.describe_topic_configs(topic)
    body = {
        "name": topic,
        "configs": {name: config.value for name, config in sorted(configs.items())},
        "partitions": _partitions(described),
    }
    return answer(body, accept)


@router.get("/topics/{topic}/partitions", response_model=list[PartitionV2], responses=_ERRORS)
async def list_partitions(topic: TopicName, cluster: Cluster, accept: Accept = None) -> Response:
    """Partitions of a topic."""
    return answer(_partitions(await cluster.admin.describe_topic(topic)), accept)


@router.get("/topics/{topic}/partitions/{partition}", response_model=PartitionV2, responses=_ERRORS)
async def get_partition(
    topic: TopicName, partition: PartitionId, cluster: Cluster, accept: Accept = None
) -> Response:
    """One partition."""
    found = _partitions(await cluster.admin.describe_topic(topic))
    if partition >= len(found):
        raise _no_partition(topic, partition)
    return answer(found[partition], accept)


@router.get(
    "/topics/{topic}/partitions/{partition}/offsets",
    response_model=PartitionOffsets,
    responses=_ERRORS,
)
async def get_offsets(
    topic: TopicName, partition: PartitionId, cluster: Cluster, accept: Accept = None
) -> Response:
    """First offset, and the one after the last."""
    described = await cluster.admin.describe_topic(topic)
    if partition >= len(described.partitions):
        raise _no_partition(topic, partition)
    name = (topic, partition)
    async with cluster.client.consumer() as consumer:
        beginning = await consumer.beginning_offsets([name])
        end = await consumer.end_offsets([name])
    body = {
        "beginning_offset": next(iter(beginning.values())),
        "end_offset": next(iter(end.values())),
    }
    return answer(body, accept)


@router.get("/brokers", response_model=BrokerIds, responses=_ERRORS)
async def list_brokers(cluster: Cluster, accept: Accept = None) -> Response:
    """Ids of the live brokers."""
    brokers = await cluster.admin.list_brokers()
    return answer({"brokers": sorted(broker.broker_id for broker in brokers)}, accept)


@router.post("/topics/{topic}", response_model=ProduceResultV2, responses=_PRODUCE_ERRORS)
async def produce_to_topic(
    topic: TopicName, request: Request, cluster: Cluster, accept: Accept = None
) -> Response:
    """Records to the partitions that their keys, or they themselves, choose."""
    return await _produce(topic, None, request, cluster, accept)


@router.post(
    "/topics/{topic}/partitions/{partition}",
    response_model=ProduceResultV2,
    responses=_PRODUCE_ERRORS,
)
async def produce_to_partition(
    topic: TopicName,
    partition: PartitionId,
    request: Request,
    cluster: Cluster,
    accept: Accept = None,
) -> Response:
    """Records to one partition."""
    return await _produce(topic, partition, request, cluster, accept)


async def _produce(
    topic: str, partition: int | None, request: Request, cluster: ClusterAccess, accept: str | None
) -> Response:
    accepted(accept, _OFFERED)
    form = FORMATS[embedded_format(request.headers.get("content-type"))]
    body = await read_json(request)
    records = [
        _record(item, index, partition, form.to_bytes)
        for index, item in enumerate(_record_items(body))
    ]
    count = await require_partition(cluster.producer, topic, partition)
    outcomes = await send_all(cluster.producer, topic, records, count)
    offsets, status = [], 200
    for outcome in outcomes:
        if isinstance(outcome, RecordFailure):
            offsets.append(
                {
                    "partition": None,
                    "offset": None,
                    "error_code": outcome.error_code,
                    "error": outcome.message,
                }
            )
            if outcome.status in (401, 403):
                status = outcome.status
        else:
            offsets.append(
                {
                    "partition": outcome.partition,
                    "offset": outcome.offset,
                    "error_code": None,
                    "error": None,
                }
            )
    return answer(
        {"offsets": offsets, "key_schema_id": None, "value_schema_id": None}, accept, status
    )


def _record_items(body: Any) -> list[Any]:
    records = body.get("records") if isinstance(body, dict) else None
    if not isinstance(records, list) or not records:
        raise RestError(422, BAD_PAYLOAD, 'the body must be {"records": [...]} with at least one')
    if len(records) > _RECORDS_MAX:
        raise RestError(413, 413, f"{len(records)} records in one request; at most {_RECORDS_MAX}")
    return records


def _record(item: Any, index: int, partition: int | None, to_bytes: Any) -> OutgoingRecord:
    where = f"records[{index}]"
    if not isinstance(item, dict):
        raise RestError(422, BAD_PAYLOAD, f"{where} must be an object")
    unknown = item.keys() - {"key", "value", "partition", "headers", "timestamp"}
    if unknown:
        raise RestError(
            422, BAD_PAYLOAD, f"{where} has unknown fields: {', '.join(sorted(unknown))}"
        )
    chosen = item.get("partition")
    if chosen is not None and (
        not isinstance(chosen, int) or isinstance(chosen, bool) or chosen < 0
    ):
        raise RestError(422, BAD_PAYLOAD, f"{where}.partition must be a whole number from 0")
    return OutgoingRecord(
        key=to_bytes(item.get("key"), f"{where}.key"),
        value=to_bytes(item.get("value"), f"{where}.value"),
        partition=partition if partition is not None else chosen,
        headers=_headers(item.get("headers"), where),
    )


def _headers(items: Any, where: str) -> Headers | None:
    if items is None:
        return None
    if not isinstance(items, list):
        raise RestError(422, BAD_PAYLOAD, f"{where}.headers must be a list")
    headers: Headers = []
    binary = FORMATS["binary"]
    for position, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise RestError(422, BAD_PAYLOAD, f"{where}.headers[{position}] must have a name")
        value = binary.to_bytes(item.get("value"), f"{where}.headers[{position}].value")
        headers.append((item["name"], value))
    return headers


def _partitions(topic: TopicDescription) -> list[dict[str, Any]]:
    return [
        {
            "partition": p.partition,
            "leader": p.leader_id,
            "replicas": [
                {"broker": broker, "leader": broker == p.leader_id, "in_sync": broker in p.isr}
                for broker in p.replicas
            ],
        }
        for p in topic.partitions
    ]


def _no_partition(topic: str, partition: int) -> RestError:
    return RestError(404, PARTITION_NOT_FOUND, f"topic {topic} has no partition {partition}")
