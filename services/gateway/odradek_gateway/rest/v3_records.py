"""v3: records, many on one request: concatenated JSON objects in, one JSON object a record out, in order.

The answers stream while the request still does. At most `_IN_FLIGHT_MAX` records wait for their acknowledgements; then
the request is read no further until the oldest is answered, so a fast client is slowed by TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from odradek.producer.delivery import DeliveryFuture
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.embedded_formats import FORMATS
from odradek_gateway.rest.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.json_stream import JsonObjects
from odradek_gateway.rest.media_types import PLAIN, base_type
from odradek_gateway.rest.produce import (
    Headers,
    OutgoingRecord,
    RecordFailure,
    hand_over,
    outcome,
    require_partition,
)
from odradek_gateway.rest.request_bodies import cluster_of, read_json
from odradek_gateway.rest.schemas import Error
from odradek_gateway.rest.v3_resources import Names, names_of

router = APIRouter(prefix="/v3/clusters/{cluster_id}", tags=["v3 records"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]
InCluster = Annotated[Names, Depends(names_of)]
TopicName = Annotated[str, Path(min_length=1, max_length=249)]
_IN_FLIGHT_MAX = 1_000
_BATCH_MAX = 10
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 401, 403, 404, 413, 415, 422, 429, 500, 503)
}
_Waiting = DeliveryFuture | RecordFailure | None


class _DuplexResponse(StreamingResponse):
    """Answers while the request is still read: the base class would wait for a disconnect by reading from it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only send."""
        await self.stream_response(send)


@router.post("/topics/{topic}/records", responses=_ERRORS)
async def produce(
    names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> StreamingResponse:
    """An answer for every record, in order; errors of single records stand in the stream as `error_code`."""
    if base_type(request.headers.get("content-type")) not in ("", PLAIN):
        raise RestError(415, 415, f"HTTP 415 Unsupported Media Type; use {PLAIN}")
    count = await require_partition(cluster.producer, topic, None)
    answers = _answers(request, cluster, names, topic, count)
    first = await anext(answers, b"")  # an error in the first record is an HTTP error
    return _DuplexResponse(_chain(first, answers), media_type=PLAIN)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for answer in rest:
        yield answer


async def _answers(
    request: Request, cluster: ClusterAccess, names: Names, topic: str, partition_count: int
) -> AsyncIterator[bytes]:
    waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_IN_FLIGHT_MAX)
    reading = asyncio.create_task(_read_records(request, cluster, topic, partition_count, waiting))
    answered = 0
    try:
        while (item := await waiting.get()) is not None:
            told = item if isinstance(item, RecordFailure) else await outcome(item)
            if isinstance(told, RecordFailure):
                if answered == 0 and waiting.empty() and told.status in (400, 413, 422):
                    raise RestError(told.status, told.error_code, told.message)
                body: dict[str, Any] = {"error_code": told.error_code, "message": told.message}
            else:
                body = _result(names, topic, told.partition, told.offset)
            answered += 1
            yield orjson.dumps(body) + b"\r\n"
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def _read_records(
    request: Request,
    cluster: ClusterAccess,
    topic: str,
    partition_count: int,
    waiting: asyncio.Queue[_Waiting],
) -> None:
    objects = JsonObjects(bytes_max=cluster.settings.record_bytes_max)
    try:
        async for chunk in request.stream():
            for item in objects.feed(chunk):
                await waiting.put(await _send(cluster, topic, item, partition_count))
        objects.close()
    except RestError as error:  # what follows cannot be told apart any more: the stream ends here
        await waiting.put(RecordFailure(error.error_code, error.message, error.status))
    except ClientDisconnect:
        pass  # nobody is there to be answered
    await waiting.put(None)


async def _send(
    cluster: ClusterAccess, topic: str, item: bytes, partition_count: int
) -> DeliveryFuture | RecordFailure:
    try:
        record = _record(orjson.loads(item))
        return await hand_over(cluster.producer, topic, record, partition_count)
    except orjson.JSONDecodeError as error:
        return RecordFailure(400, f"a record is not JSON: {error}", 400)
    except RestError as error:
        return RecordFailure(error.error_code, error.message, error.status)


@router.post("/topics/{topic}/records:batch", status_code=207, responses=_ERRORS)
async def produce_batch(
    names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> JSONResponse:
    """At most 10 records, each named by an `id`; successes and failures apart (207)."""
    body = await read_json(request)
    entries = body.get("entries") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not 0 < len(entries) <= _BATCH_MAX:
        raise RestError(422, BAD_PAYLOAD, f"entries must be a list of 1 to {_BATCH_MAX} records")
    ids = [entry.get("id") if isinstance(entry, dict) else None for entry in entries]
    if any(not isinstance(one, str) or not one for one in ids) or len(set(ids)) < len(ids):
        raise RestError(422, BAD_PAYLOAD, "every entry needs an id of its own")
    count = await require_partition(cluster.producer, topic, None)
    sent: list[DeliveryFuture | RecordFailure] = []
    for entry in entries:
        try:
            record = _record({k: v for k, v in entry.items() if k != "id"})
        except RestError as error:
            sent.append(RecordFailure(error.error_code, error.message, error.status))
            continue
        sent.append(await hand_over(cluster.producer, topic, record, count))
    successes, failures = [], []
    for name, item in zip(ids, sent, strict=True):
        told = item if isinstance(item, RecordFailure) else await outcome(item)
        if isinstance(told, RecordFailure):
            failures.append({"id": name, "error_code": told.error_code, "message": told.message})
        else:
            successes.append({"id": name, **_result(names, topic, told.partition, told.offset)})
    return JSONResponse({"successes": successes, "failures": failures}, 207)


def _result(names: Names, topic: str, partition: int, offset: int) -> dict[str, Any]:
    return {
        "error_code": 200,
        "cluster_id": names.cluster_id,
        "topic_name": topic,
        "partition_id": partition,
        "offset": offset,
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def _record(item: Any) -> OutgoingRecord:
    if not isinstance(item, dict):
        raise RestError(400, 400, "a record must be a JSON object")
    unknown = item.keys() - {"partition_id", "headers", "key", "value", "timestamp"}
    if unknown:
        raise RestError(400, 400, f"unknown fields: {', '.join(sorted(unknown))}")
    partition = item.get("partition_id")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        raise RestError(422, BAD_PAYLOAD, "partition_id must be a whole number")
    return OutgoingRecord(
        key=_data(item.get("key"), "key"),
        value=_data(item.get("value"), "value"),
        partition=partition,
        headers=_headers(item.get("headers")),
        timestamp_ms=_timestamp_ms(item.get("timestamp")),
    )


def _data(item: Any, where: str) -> bytes | None:
    if item is None:
        return None
    if not isinstance(item, dict):
        raise RestError(400, 400, f'{where} must be {{"type": ..., "data": ...}}')
    kind, data = str(item.get("type", "JSON")).upper(), item.get("data")
    if kind == "STRING":
        if data is not None and not isinstance(data, str):
            raise RestError(422, BAD_PAYLOAD, f"{where}.data must be a string")
        return None if data is None else data.encode()
    form = FORMATS.get(kind.lower())
    if form is None:
        raise RestError(422, BAD_PAYLOAD, f"{where}.type {kind}: BINARY, JSON and STRING are known")
    return form.to_bytes(data, f"{where}.data")


def _headers(items: Any) -> Headers | None:
    if items is None:
        return None
    if not isinstance(items, list):
        raise RestError(400, 400, "headers must be a list")
    headers: Headers = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise RestError(400, 400, "a header must have a name")
        headers.append(
            (item["name"], FORMATS["binary"].to_bytes(item.get("value"), "header value"))
        )
    return headers


def _timestamp_ms(text: Any) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise RestError(422, BAD_PAYLOAD, "timestamp must be an ISO 8601 date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
