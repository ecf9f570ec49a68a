"""The v2 route by which a consumer instance reads records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from odradek.consumer.consumer import Consumer
from odradek.consumer.consumer_record import ConsumerRecord
from odradek_gateway.errors import FORMAT_MISMATCH, RestError
from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, NO_RECORDS, V2, accepted
from odradek_gateway.rest.records import FORMATS, EmbeddedFormat
from odradek_gateway.rest.requests import GroupName, InstanceName, cluster_of, while_connected
from odradek_gateway.rest.responses import ReadyPieces, encode
from odradek_gateway.rest.v2.consumers import BASE, ERRORS, at_owner
from odradek_gateway.rest.v2.instance import Instance
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.rest.v2.other_gateways import Elsewhere
from odradek_gateway.rest.v2.shapes import ConsumedRecord

router = APIRouter(tags=["v2 consumers"])
_FORMAT_TYPES: Final = {"binary": BINARY_V2, "json": JSON_V2}
_BYTES_MAX: Final = 64 << 20
_RECORDS_MAX: Final = 5_000
_NO_RECORDS: Final = Elsewhere(200, b"[]", V2)
_RECORDS_PER_PIECE: Final = 200
_PIECE_BYTES: Final = 256 << 10


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
    """Return the next records, and wait up to `timeout` ms if there are none (default: consumer.request.timeout.ms of
    the instance).

    The Accept header must allow the instance's format. If the next record does not have this format, the response is
    error 42203. No record is skipped: further requests fail in the same way until the client seeks to an offset after
    that record.
    """

    async def work(_instances: Instances, instance: Instance, _body: bytes) -> Response:
        media_type = _media_type(instance, request)
        consumer = await instance.read_begins()
        wait_ms = instance.spec.request_timeout_ms if timeout is None else timeout
        wait_ms = min(wait_ms, cluster_of(request).settings.consumer_request_timeout_ms_max)
        records = await _read(instance, consumer, request, wait_ms, max_bytes)
        try:
            pieces, rest = await _formatted(records, FORMATS[instance.spec.format], max_bytes)
            if rest and rest[0] is records[0]:
                raise _not_of_the_format(rest[0], instance.spec.format)
            response = ReadyPieces(pieces, media_type=media_type)
            # A client that has disconnected does not receive these records, so the next request must read them again.
            _read_again(consumer, records if await request.is_disconnected() else rest)
        except BaseException:
            # Otherwise the next read or commit would skip records that no response contained.
            _read_again(consumer, records)
            raise
        return response

    return await at_owner(group, instance, request, work, at_stop=_NO_RECORDS)


def _media_type(instance: Instance, request: Request) -> str:
    own_type = _FORMAT_TYPES[instance.spec.format]
    try:
        return accepted(request.headers.get("accept"), (own_type, V2))
    except RestError:
        # A media type of another embedded format gets the code FORMAT_MISMATCH. For any other type, this call of
        # `accepted` raises a plain 406.
        accepted(request.headers.get("accept"), NO_RECORDS)
        words = f"the instance's format is {instance.spec.format}: accept {own_type}"
        raise RestError(406, FORMAT_MISMATCH, words) from None


async def _read(
    instance: Instance, consumer: Consumer, request: Request, wait_ms: int, max_bytes: int
) -> list[ConsumerRecord]:
    """Read records until they have `fetch.min.bytes`, the time is up, or the gateway stops; return those that arrived.

    All records come from one call of `getmany`. A second call would mark the records of the first one as processed, and
    their offsets might be committed before the client has received them.
    """
    records_max = max(1, min(_RECORDS_MAX, max_bytes // 16))
    min_bytes = max(1, min(instance.spec.fetch_min_bytes, max_bytes))
    if min_bytes == 1 and (records := await consumer.getmany(0, records_max)):
        return records
    records = []
    try:
        async with while_connected(request), cluster_of(request).waits.long_poll(wait_ms / 1000):
            records = await consumer.getmany(None, records_max, min_bytes=min_bytes)
    except TimeoutError:
        return records or await consumer.getmany(0, records_max)
    except BaseException:
        _read_again(consumer, records)
        raise
    return records


async def _formatted(
    records: Sequence[ConsumerRecord], form: EmbeddedFormat, max_bytes: int
) -> tuple[list[bytes], Sequence[ConsumerRecord]]:
    """Return the pieces of the response body, and the records that are not in it.

    The body ends before the first record that does not have the format, or that would exceed `max_bytes`; the first
    record may exceed `max_bytes`. Other requests run after each piece of the body.
    """
    pieces: list[bytes] = [b"["]
    formatted: list[dict[str, Any]] = []
    size = size_of_piece = 0
    end = len(records)
    for index, record in enumerate(records):
        size += _size(record)
        if index and size > max_bytes:
            end = index
            break
        try:
            formatted.append(_as_json(record, form))
        except RestError:
            end = index
            break
        size_of_piece += _size(record)
        if len(formatted) == _RECORDS_PER_PIECE or size_of_piece >= _PIECE_BYTES:
            pieces += (encode(formatted)[1:-1], b",")
            formatted, size_of_piece = [], 0
            await asyncio.sleep(0)
    if formatted:
        pieces.append(encode(formatted)[1:-1])
    elif len(pieces) > 1:
        pieces.pop()  # removes the comma after the last record
    pieces.append(b"]")
    return pieces, records[end:]


def _as_json(record: ConsumerRecord, form: EmbeddedFormat) -> dict[str, Any]:
    """Return a record in v2's JSON form. Raises RestError 42203 if its key or value does not have the format."""
    binary = FORMATS["binary"]
    return {
        "topic": record.topic,
        "key": form.from_bytes(record.key),
        "value": form.from_bytes(record.value),
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "headers": [
            {"name": _json_name(name), "value": binary.from_bytes(data)}
            for name, data in record.headers
        ],
    }


def _json_name(name: str) -> str:
    """Return a header's name with U+FFFD for bytes that are not UTF-8, which JSON cannot contain."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read_again(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    assigned = set(consumer.assignment())
    firsts: dict[tuple[str, int], int] = {}
    for record in records:
        firsts.setdefault((str(record.topic), record.partition), record.offset)
    for name, offset in firsts.items():
        # If the partition is no longer assigned, another member of the group reads these records.
        if name in assigned:
            consumer.seek(name, offset)


def _not_of_the_format(record: ConsumerRecord, form: str) -> RestError:
    try:
        FORMATS[form].from_bytes(record.key)
        FORMATS[form].from_bytes(record.value)
    except RestError as error:
        where = f"{record.topic}-{record.partition} at offset {record.offset}"
        words = (
            f"{where}: {error.message}; seek to offset {record.offset + 1} (positions) to continue after it,"
            " or read with an instance of format binary"
        )
        return RestError(error.status, error.error_code, words)
    raise AssertionError(f"{record} was refused, but it is of format {form}")


def _size(record: ConsumerRecord) -> int:
    return max(1, len(record.key or b"") + len(record.value or b""))
