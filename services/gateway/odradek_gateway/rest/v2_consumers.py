"""v2: consumer instances. Any gateway serves any of them (see odradek_gateway.consumers)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import httpx
import orjson
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from odradek.partitions import TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.consumers.instance import Instance, spec_of_request
from odradek_gateway.consumers.instances import PASSED_ON, Elsewhere, Instances
from odradek_gateway.rest.embedded_formats import FORMATS
from odradek_gateway.rest.errors import BAD_PAYLOAD, FORMAT_MISMATCH, RestError
from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, V2, accepted, require_json
from odradek_gateway.rest.request_bodies import cluster_of, read_body, read_json
from odradek_gateway.rest.schemas import Error
from odradek_gateway.rest.v2_topics import answer

router = APIRouter(tags=["v2 consumers"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
Group = Annotated[str, Path(min_length=1, max_length=249)]
Name = Annotated[str, Path(min_length=1, max_length=249)]
_BASE = "/consumers/{group}/instances/{instance}"
_FORMAT_TYPES = {"binary": BINARY_V2, "json": JSON_V2}
_TIMEOUT_MS = 1_000
_TIMEOUT_MS_MAX = 60_000
_BYTES_MAX = 64 << 20
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 404, 406, 409, 415, 422, 429, 500, 503)
}
Work = Callable[[Instances, Instance, bytes], Awaitable[Response]]


def instances_of(request: Request) -> Instances:
    """The process's instances."""
    found = request.app.state.instances
    assert isinstance(found, Instances), "the application has no instances"
    return found


@router.post("/consumers/{group}", responses=_ERRORS)
async def create_instance(group: Group, request: Request) -> Response:
    """Make an instance; `base_uri` is where it is asked."""
    require_json(request.headers.get("content-type"))
    body = await read_json(request, empty={})
    if not isinstance(body, dict):
        raise RestError(422, BAD_PAYLOAD, "the body must be an object")
    name = body.get("name") or body.get("id") or ""
    if not isinstance(name, str) or len(name) > 249 or "/" in name:
        raise RestError(
            422, BAD_PAYLOAD, "name must be a string of at most 249 characters without /"
        )
    spec = await instances_of(request).create(spec_of_request(group, name, body))
    base = str(request.base_url).rstrip("/")
    told = {
        "instance_id": spec.name,
        "base_uri": f"{base}/consumers/{group}/instances/{spec.name}",
    }
    return answer(told, request.headers.get("accept"))


@router.delete(_BASE, status_code=204, responses=_ERRORS)
async def delete_instance(group: Group, instance: Name, request: Request) -> Response:
    """Leave the group and forget the instance."""

    async def work(instances: Instances, found: Instance, _body: bytes) -> Response:
        await instances.remove(found)
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


# --- subscription and assignment -------------------------------------------------------------------


@router.post(f"{_BASE}/subscription", status_code=204, responses=_ERRORS)
async def subscribe(group: Group, instance: Name, request: Request) -> Response:
    """To topics by name, or by a pattern (RE2 syntax)."""
    require_json(request.headers.get("content-type"))

    async def work(instances: Instances, found: Instance, body: bytes) -> Response:
        wanted = _object(body)
        topics, pattern = wanted.get("topics") or [], wanted.get("topic_pattern")
        names_are_good = isinstance(topics, list) and all(isinstance(t, str) and t for t in topics)
        if not names_are_good or not (pattern is None or isinstance(pattern, str)):
            raise RestError(422, BAD_PAYLOAD, "topics is a list of names, topic_pattern a string")
        if bool(topics) == bool(pattern):
            raise RestError(422, BAD_PAYLOAD, "give topics or topic_pattern")
        spec = replace(found.spec, topics=tuple(topics), pattern=pattern)
        await instances.use(found, spec)
        await found.consumer()  # join now: the first records request then finds records
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


@router.get(f"{_BASE}/subscription", responses=_ERRORS)
async def get_subscription(group: Group, instance: Name, request: Request) -> Response:
    """Topics by name."""

    async def work(_instances: Instances, found: Instance, _body: bytes) -> Response:
        return answer({"topics": list(found.spec.topics)}, request.headers.get("accept"))

    return await _at_owner(group, instance, request, work)


@router.delete(f"{_BASE}/subscription", status_code=204, responses=_ERRORS)
async def unsubscribe(group: Group, instance: Name, request: Request) -> Response:
    """From all."""

    async def work(instances: Instances, found: Instance, _body: bytes) -> Response:
        await instances.use(found, replace(found.spec, topics=(), pattern=None))
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


@router.post(f"{_BASE}/assignments", status_code=204, responses=_ERRORS)
async def assign(group: Group, instance: Name, request: Request) -> Response:
    """Exactly these partitions, without the group's help."""
    require_json(request.headers.get("content-type"))

    async def work(instances: Instances, found: Instance, body: bytes) -> Response:
        names = _partitions(_object(body))
        spec = replace(found.spec, partitions=tuple((n.topic, n.partition) for n in names))
        await instances.use(found, spec)
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


@router.get(f"{_BASE}/assignments", responses=_ERRORS)
async def get_assignments(group: Group, instance: Name, request: Request) -> Response:
    """What it reads now."""

    async def work(_instances: Instances, found: Instance, _body: bytes) -> Response:
        names = (await found.consumer()).assignment()
        told = [{"topic": n.topic, "partition": n.partition} for n in names]
        return answer({"partitions": told}, request.headers.get("accept"))

    return await _at_owner(group, instance, request, work)


# --- records ---------------------------------------------------------------------------------------


@router.get(f"{_BASE}/records", responses=_ERRORS)
async def read_records(
    group: Group,
    instance: Name,
    request: Request,
    timeout: Annotated[int, Query(ge=0)] = _TIMEOUT_MS,
    max_bytes: Annotated[int, Query(ge=1)] = _BYTES_MAX,
) -> Response:
    """What is there, or comes within `timeout` ms; the Accept header must allow the instance's format."""

    async def work(instances: Instances, found: Instance, _body: bytes) -> Response:
        own_type = _FORMAT_TYPES[found.spec.format]
        try:
            media_type = accepted(request.headers.get("accept"), (own_type, V2))
        except RestError:
            raise RestError(
                406,
                FORMAT_MISMATCH,
                f"the instance's format is {found.spec.format}: accept {own_type}",
            ) from None
        consumer = await found.consumer()
        wait_ms = min(timeout, _TIMEOUT_MS_MAX)
        if cluster_of(request).is_stopping:
            wait_ms = 0
        records = await consumer.getmany(timeout_ms=wait_ms, max_records=_records_max(max_bytes))
        to_json = FORMATS[found.spec.format].from_bytes
        told: list[dict[str, Any]] = []
        size = 0
        for index, record in enumerate(records):
            size += len(record.key or b"") + len(record.value or b"")
            if told and size > max_bytes:
                for rest in reversed(records[index:]):  # to be read again
                    consumer.seek((str(rest.topic), rest.partition), rest.offset)
                break
            told.append(
                {
                    "topic": record.topic,
                    "key": to_json(record.key),
                    "value": to_json(record.value),
                    "partition": record.partition,
                    "offset": record.offset,
                }
            )
        return Response(orjson.dumps(told), media_type=media_type)

    return await _at_owner(group, instance, request, work)


def _records_max(max_bytes: int) -> int:
    return max(1, min(5_000, max_bytes // 16))


# --- offsets ---------------------------------------------------------------------------------------


@router.post(f"{_BASE}/offsets", status_code=200, responses=_ERRORS)
async def commit(group: Group, instance: Name, request: Request) -> Response:
    """Those in the body, or all that was handed out when it is empty."""

    async def work(_instances: Instances, found: Instance, body: bytes) -> Response:
        offsets = None
        if body.strip():
            items = _object(body).get("offsets")
            offsets = {name: offset + 1 for name, offset in _offsets(items, "offsets").items()}
        await found.commit(offsets)
        return Response(status_code=200)

    return await _at_owner(group, instance, request, work)


@router.get(f"{_BASE}/offsets", responses=_ERRORS)
async def committed(group: Group, instance: Name, request: Request) -> Response:
    """The last committed offsets of the partitions in the body (a GET with a body, as the API has it)."""

    async def work(_instances: Instances, found: Instance, body: bytes) -> Response:
        names = _partitions(_object(body))
        offsets = await found.client.admin.group_offsets(found.spec.group, names)
        told = [
            {"topic": n.topic, "partition": n.partition, "offset": offsets[n] - 1, "metadata": ""}
            for n in names
            if n in offsets
        ]
        return answer({"offsets": told}, request.headers.get("accept"))

    return await _at_owner(group, instance, request, work)


@router.post(f"{_BASE}/positions", status_code=204, responses=_ERRORS)
async def seek(group: Group, instance: Name, request: Request) -> Response:
    """To offsets."""

    async def work(_instances: Instances, found: Instance, body: bytes) -> Response:
        consumer = await found.consumer()
        for name, offset in _offsets(_object(body).get("offsets"), "offsets").items():
            consumer.seek(_assigned(consumer, name), offset)
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


@router.post(f"{_BASE}/positions/beginning", status_code=204, responses=_ERRORS)
async def seek_to_beginning(group: Group, instance: Name, request: Request) -> Response:
    """Of the partitions in the body."""
    return await _seek_all(group, instance, request, at_end=False)


@router.post(f"{_BASE}/positions/end", status_code=204, responses=_ERRORS)
async def seek_to_end(group: Group, instance: Name, request: Request) -> Response:
    """Of the partitions in the body."""
    return await _seek_all(group, instance, request, at_end=True)


async def _seek_all(group: str, instance: str, request: Request, *, at_end: bool) -> Response:
    async def work(_instances: Instances, found: Instance, body: bytes) -> Response:
        consumer = await found.consumer()
        names = [_assigned(consumer, name) for name in _partitions(_object(body))]
        if at_end:
            consumer.seek_to_end(*names)
        else:
            consumer.seek_to_beginning(*names)
        return Response(status_code=204)

    return await _at_owner(group, instance, request, work)


# --- where -----------------------------------------------------------------------------------------


async def _at_owner(group: str, name: str, request: Request, work: Work) -> Response:
    body = await read_body(request)
    passed = httpx.Request(
        request.method, str(request.url), headers=dict(request.headers), content=body
    )
    instances = instances_of(request)
    found = await instances.find(group, name, passed, was_passed_on=PASSED_ON in request.headers)
    if isinstance(found, Elsewhere):
        return Response(found.body, found.status, media_type=found.media_type)
    async with found.lock:
        return await work(instances, found, body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RestError(400, 400, f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise RestError(422, BAD_PAYLOAD, "the body must be an object")
    return parsed


def _partitions(body: dict[str, Any]) -> list[TopicPartition]:
    return list(_offsets(body.get("partitions"), "partitions", needs_offset=False))


def _offsets(items: Any, where: str, *, needs_offset: bool = True) -> dict[TopicPartition, int]:
    if not isinstance(items, list) or not items:
        raise RestError(422, BAD_PAYLOAD, f"{where} must be a list with at least one item")
    found: dict[TopicPartition, int] = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("topic"), str):
            raise RestError(422, BAD_PAYLOAD, f"an item of {where} needs a topic")
        partition, offset = item.get("partition"), item.get("offset", 0)
        numbers = (partition, offset) if needs_offset else (partition,)
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            raise RestError(422, BAD_PAYLOAD, f"an item of {where} needs whole numbers from 0")
        found[TopicPartition(item["topic"], int(partition or 0))] = int(offset)
    return found


def _assigned(consumer: Any, name: TopicPartition) -> TopicPartition:
    if name not in consumer.assignment():
        raise RestError(404, 40402, f"{name} is not assigned to this instance")
    return name
