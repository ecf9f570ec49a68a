"""v2: what an instance reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from odradek.consumer.consumer import Consumer
from odradek.consumer.consumer_record import ConsumerRecord
from odradek_gateway.consumers.instance import Instance
from odradek_gateway.consumers.instances import Elsewhere, Instances
from odradek_gateway.errors import FORMAT_MISMATCH, RestError
from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, NO_RECORDS, V2, accepted
from odradek_gateway.rest.records import FORMATS, EmbeddedFormat
from odradek_gateway.rest.requests import GroupName, InstanceName, cluster_of, while_connected
from odradek_gateway.rest.v2.consumers import BASE, ERRORS, at_owner
from odradek_gateway.rest.v2.shapes import ConsumedRecord

router = APIRouter(tags=["v2 consumers"])
_FORMAT_TYPES: Final = {"binary": BINARY_V2, "json": JSON_V2}
_BYTES_MAX: Final = 64 << 20
_RECORDS_MAX: Final = 5_000
_NO_RECORDS: Final = Elsewhere(200, b"[]", V2)
_encode = msgspec.json.Encoder().encode


@router.get(
    f"{BASE}/records",
    response_model=list[ConsumedRecord],
    responses=ERRORS,
)
async def read_records(
    group: GroupName,
    instance: InstanceName,
    request: Request,
    timeout: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    max_bytes: Annotated[int, Query(ge=1, le=2**31 - 1)] = _BYTES_MAX,
) -> Response:
    """What is there, or comes within `timeout` ms (the instance's, unless given).

    The Accept header must allow the instance's format. A record that is not of the format is 42203 as soon as
    it is the first one: it is read again until someone seeks beyond it, since nothing is skipped silently.
    """

    async def work(_instances: Instances, found: Instance, _body: bytes) -> Response:
        media_type = _media_type(found, request)
        consumer = await found.read_begins()
        wait_ms = found.spec.request_timeout_ms if timeout is None else timeout
        wait_ms = min(wait_ms, cluster_of(request).settings.consumer_request_timeout_ms_max)
        records = await _read(found, consumer, request, wait_ms, max_bytes)
        told, rest = _formatted(records, FORMATS[found.spec.format], max_bytes)
        _read_again(consumer, rest)
        if not told and rest:
            raise _not_of_the_format(rest[0], found.spec.format)
        body = _encode(told)
        if await request.is_disconnected():  # nobody gets them: they are read again
            _read_again(consumer, records)
        return Response(body, media_type=media_type)

    return await at_owner(group, instance, request, work, at_stop=_NO_RECORDS)


def _media_type(found: Instance, request: Request) -> str:
    own_type = _FORMAT_TYPES[found.spec.format]
    try:
        return accepted(request.headers.get("accept"), (own_type, V2))
    except RestError:
        accepted(
            request.headers.get("accept"), NO_RECORDS
        )  # 406 if it is no type of this API at all
        words = f"the instance's format is {found.spec.format}: accept {own_type}"
        raise RestError(406, FORMAT_MISMATCH, words) from None


async def _read(
    found: Instance, consumer: Consumer, request: Request, wait_ms: int, max_bytes: int
) -> list[ConsumerRecord]:
    """At least `fetch.min.bytes` of records, or what came until the time was up or the gateway stops.

    The consumer hands them out at once: what it handed out before counts as processed when it is asked again, and
    might be committed before the client has it.
    """
    records_max = max(1, min(_RECORDS_MAX, max_bytes // 16))
    min_bytes = max(1, min(found.spec.fetch_min_bytes, max_bytes))
    if min_bytes == 1 and (records := await consumer.getmany(0, records_max)):
        return records
    try:
        async with while_connected(request), cluster_of(request).waits.long_poll(wait_ms / 1000):
            return await consumer.getmany(None, records_max, min_bytes=min_bytes)
    except TimeoutError:
        return await consumer.getmany(0, records_max)


def _formatted(
    records: Sequence[ConsumerRecord], form: EmbeddedFormat, max_bytes: int
) -> tuple[list[dict[str, Any]], Sequence[ConsumerRecord]]:
    """As many as fit and are of the format, at least one if it is; and the rest."""
    told: list[dict[str, Any]] = []
    binary = FORMATS["binary"]
    size = 0
    for index, record in enumerate(records):
        size += _size(record)
        if told and size > max_bytes:
            return told, records[index:]
        try:
            key, value = form.from_bytes(record.key), form.from_bytes(record.value)
        except RestError:
            return told, records[index:]
        told.append(
            {
                "topic": record.topic,
                "key": key,
                "value": value,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "headers": [
                    {"name": name, "value": binary.from_bytes(data)}
                    for name, data in record.headers
                ],
            }
        )
    return told, ()


def _read_again(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    assigned = set(consumer.assignment())
    firsts: dict[tuple[str, int], int] = {}
    for record in records:
        firsts.setdefault((str(record.topic), record.partition), record.offset)
    for name, offset in firsts.items():
        if name in assigned:  # else it went to another member meanwhile, which reads it
            consumer.seek(name, offset)


def _not_of_the_format(record: ConsumerRecord, form: str) -> RestError:
    try:
        FORMATS[form].from_bytes(record.key)
        FORMATS[form].from_bytes(record.value)
    except RestError as error:
        where = f"{record.topic}-{record.partition} at offset {record.offset}"
        words = (
            f"{where}: {error.message}; seek to offset {record.offset + 1} (positions) to go on behind it,"
            " or read with an instance of format binary"
        )
        return RestError(error.status, error.error_code, words)
    raise AssertionError(f"{record} is of format {form}")


def _size(record: ConsumerRecord) -> int:
    return max(1, len(record.key or b"") + len(record.value or b""))
