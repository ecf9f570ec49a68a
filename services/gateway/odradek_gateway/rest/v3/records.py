"""The v3 routes that produce records: a stream of records in one request, and a batch.

The body of a stream consists of concatenated JSON objects, one for each record. The response has one JSON object for
each record, in the order of the request, and is sent while the request is still being read. At most `_IN_FLIGHT_MAX`
records wait for their acknowledgements. Beyond that the gateway stops reading the request until the oldest record is
acknowledged, so TCP slows a fast client down.

`JsonObjects` cuts the body into single objects. It looks only at brackets and strings; a JSON parser decodes each
object afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from odradek.cluster.turns import in_turns
from odradek.producer.delivery import DeliveryFuture, RecordMetadata
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.media_types import PLAIN
from odradek_gateway.rest.records import (
    FORMATS,
    NULL,
    Header,
    OutgoingRecord,
    Partition,
    RecordFailure,
    hand_over,
    headers_of,
    outcome,
    require_partition,
)
from odradek_gateway.rest.requests import Cluster, JsonBody, TopicName, chunks_of, decoded
from odradek_gateway.rest.v3.resources import ERRORS, PREFIX, InCluster, Names
from odradek_gateway.rest.v3.shapes import BatchResult, RecordResult
from odradek_runtime.logs import event_log

# The outer repetition is not possessive because of a bug before Python 3.11.5 (gh-106052): if the repeated part fails
# in its middle, such as at a string that has not ended yet, a possessive repetition continues after the beginning of
# that part. The repetition is bounded, because each repetition takes memory.
_BETWEEN_BRACKETS = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\[\s\S])*+"){0,1000}')
"""Matches whole strings and any text outside of strings, up to the next bracket or for at most 1,000 repetitions."""
_IN_STRING = re.compile(rb'["\\]')
_BLANK = b" \t\r\n"


class JsonObjects:
    """Splits a stream of bytes into complete JSON objects. An object above `bytes_max` is refused with 413."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._position = 0  # position up to which the text was scanned
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add the next bytes of the stream, and yield the objects that are complete now.

        Raises:
            RestError: 400 if anything else than an object begins, 413 for an object above `bytes_max`.
        """
        self._buffer += data
        start = 0
        while True:
            if self._depth == 0:
                while start < len(self._buffer) and self._buffer[start] in _BLANK:
                    start += 1
                self._position = max(self._position, start)
                if start == len(self._buffer):
                    break
                if self._buffer[start] != ord("{"):
                    raise RestError(
                        400, 400, "the body must consist of JSON objects, one after the other"
                    )
            end = self._scan()
            if end is None:
                break
            yield bytes(self._buffer[start:end])
            start = end
        del self._buffer[:start]
        self._position -= start
        if len(self._buffer) > self._bytes_max:
            raise RestError(413, 413, f"a record is larger than {self._bytes_max} bytes")

    def close(self) -> None:
        """Check the end of the stream. Raises RestError 400 if the last object is not complete."""
        if self._depth or self._buffer.strip():
            raise RestError(400, 400, "the stream of records ends within a record")

    def _scan(self) -> int | None:
        """Continue to scan for the end of the current object. Return None if the end has not arrived yet."""
        buffer, position = self._buffer, self._position
        while True:
            if self._in_string:  # the string began in bytes that arrived earlier
                match = _IN_STRING.search(buffer, position)
                if match is None:
                    self._position = len(buffer)
                    return None
                position = match.end()
                if buffer[match.start()] == ord('"'):
                    self._in_string = False
                elif position >= len(buffer):
                    self._position = match.start()
                    return None
                else:
                    position += 1  # the character after a backslash
                continue
            skipped = _BETWEEN_BRACKETS.match(buffer, position)
            assert skipped is not None, "the pattern also matches the empty string"
            position = skipped.end()
            if position >= len(buffer):
                self._position = len(buffer)
                return None
            byte = buffer[position]
            position += 1
            if byte == ord('"'):
                self._in_string = True
            elif byte in b"{[":
                self._depth += 1
            elif byte in b"}]":
                self._depth -= 1
                if self._depth <= 0:
                    self._depth = 0
                    self._position = position
                    return position


router = APIRouter(prefix=PREFIX, tags=["v3 records"])
_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
# The last millisecond of the year 9999 in UTC, the latest time that `_iso` can format. A time of the year 9999 in
# another time zone may be later.
_TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
_IN_FLIGHT_MAX: Final = 1_000
_BATCH_MAX: Final = 10
_log = event_log(__name__)


class RecordData(msgspec.Struct, forbid_unknown_fields=True):
    """A key or a value. `data` is base64 (BINARY), any JSON value (JSON), or a string (STRING, written as UTF-8)."""

    type: Literal["BINARY", "JSON", "STRING"] = "JSON"
    data: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


class ProducedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record. `timestamp` is an RFC 3339 time; a time without a zone is UTC."""

    partition_id: Partition | None = None
    headers: list[Header] | None = None
    key: RecordData | None = None
    value: RecordData | None = None
    timestamp: datetime.datetime | None = None


class BatchEntry(ProducedRecord, kw_only=True):
    """A record of a batch. The client chooses `id`, by which the response identifies the record."""

    id: Annotated[str, msgspec.Meta(min_length=1)]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Records with ids. Each record is written, or fails, independently of the others."""

    entries: Annotated[list[BatchEntry], msgspec.Meta(min_length=1, max_length=_BATCH_MAX)]


class _RawBatch(msgspec.Struct, forbid_unknown_fields=True):
    entries: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=_BATCH_MAX)]


class _Named(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]


_EXAMPLE: Final = {
    "key": {"type": "STRING", "data": "key"},
    "value": {"type": "JSON", "data": {"hello": "world"}},
}
_RECORD = JsonBody(ProducedRecord, example=_EXAMPLE)
_BATCH = JsonBody(BatchRequest, example={"entries": [{"id": "1", **_EXAMPLE}]})
_RAW_BATCH = JsonBody(_RawBatch, has_records=True)
_record_decoder = msgspec.json.Decoder(ProducedRecord)
_entry_decoder = msgspec.json.Decoder(BatchEntry)
_name_decoder = msgspec.json.Decoder(_Named)
_text_decoder = msgspec.json.Decoder(str | None)


class _Sent(NamedTuple):
    """A record that was passed to the producer, or the reason why it could not be sent.

    `outcome` is a future, or the failure; `record` and `data` are None if the record could not be decoded.
    """

    outcome: DeliveryFuture | RecordFailure
    record: OutgoingRecord | None = None
    data: ProducedRecord | None = None


class _DuplexResponse(StreamingResponse):
    """A streaming response that is sent while the request is still being read.

    The base class would read from the request, too, to notice a disconnect, and parts of the body would be lost.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response without reading from the request."""
        await self.stream_response(send)


@router.post(
    "/topics/{topic}/records",
    response_model=RecordResult,
    responses=ERRORS,
    openapi_extra=_RECORD.openapi,
)
async def produce(
    names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> StreamingResponse:
    """Produce a stream of records: JSON objects, one after the other. The response is a stream of results in the same
    order; the result of a record that failed has the `error_code` of the failure.
    """
    _RECORD.check_type(request)
    count = await require_partition(cluster.producer, topic, None)
    results = _results(request, cluster, names, topic, count)
    # `anext` raises RestError if the only record of the request is not valid. The response is then an HTTP error.
    first = await anext(results, None)
    if first is None:
        raise RestError(400, 400, "the body is empty; records are expected")
    return _DuplexResponse(_chain(first, results), media_type=PLAIN)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for result in rest:
        yield result


async def _results(
    request: Request, cluster: ClusterAccess, names: Names, topic: str, partition_count: int
) -> AsyncIterator[bytes]:
    waiting: asyncio.Queue[_Sent | None] = asyncio.Queue(_IN_FLIGHT_MAX)
    reading = asyncio.create_task(_read_records(request, cluster, topic, partition_count, waiting))
    yielded = 0
    try:
        while (item := await waiting.get()) is not None:
            result = await _acknowledged(item)
            if isinstance(result, RecordFailure):
                await asyncio.sleep(0)
                # If only the end marker is in the queue, the request had no other record.
                is_alone = reading.done() and waiting.qsize() == 1
                if yielded == 0 and is_alone and result.status in (400, 408, 413, 422):
                    raise RestError(result.status, result.error_code, result.message)
                body: dict[str, Any] = {"error_code": result.error_code, "message": result.message}
            else:
                body = _result(names, item, result)
            yielded += 1
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
    waiting: asyncio.Queue[_Sent | None],
) -> None:
    objects = JsonObjects(bytes_max=cluster.settings.record_bytes_max)
    try:
        idle_ms_max = cluster.settings.stream_idle_timeout_ms
        async for chunk in chunks_of(request, idle_ms_max, cluster.waits.stream_read):
            for item in objects.feed(chunk):
                await waiting.put(
                    await _send(cluster, topic, _record_decoder, item, partition_count)
                )
        objects.close()
    except RestError as error:
        # The remaining body cannot be divided into records, so the stream ends here. If it ends because the gateway
        # stops, there is no error: each record that was read gets a result, and the client can send the
        # other records to another gateway.
        if error.status != 408 or not cluster.waits.is_stopping:
            await waiting.put(_refused(error))
    except ClientDisconnect:
        pass  # the client has disconnected
    # Any other exception is a bug. The queue still gets its end marker, so that `_results` does not wait for ever.
    except Exception as error:
        _log.error("Failed to read a client's stream of records because of a bug", exc=error)
        await waiting.put(_refused(RestError(500, 500, "internal error: see the gateway's log")))
    await waiting.put(None)


async def _send(
    cluster: ClusterAccess,
    topic: str,
    decoder: msgspec.json.Decoder[Any],
    item: bytes,
    partition_count: int,
) -> _Sent:
    try:
        data: ProducedRecord = decoded(decoder, item)
        record = outgoing(data)
    except RestError as error:
        return _refused(error)
    return _Sent(await hand_over(cluster.producer, topic, record, partition_count), record, data)


def _refused(error: RestError) -> _Sent:
    return _Sent(RecordFailure(error.error_code, error.message, error.status))


async def _acknowledged(sent: _Sent) -> RecordMetadata | RecordFailure:
    """Wait until one record is acknowledged or has failed, and return the outcome."""
    pending = sent.outcome
    return pending if isinstance(pending, RecordFailure) else await outcome(pending)


@router.post(
    "/topics/{topic}/records:batch",
    status_code=207,
    response_model=BatchResult,
    responses=ERRORS,
    openapi_extra=_BATCH.openapi,
)
async def produce_batch(
    names: InCluster, topic: TopicName, request: Request, cluster: Cluster
) -> JSONResponse:
    """Produce at most 10 records, each with an `id`. The response (status 207) has a list of successes and a list of
    failures.
    """
    bytes_max = cluster.settings.record_bytes_max
    entries = (await _RAW_BATCH.read(request, bytes_max=bytes_max)).entries
    ids = [decoded(_name_decoder, bytes(entry)).id async for entry in in_turns(entries, 1)]
    if len(set(ids)) < len(ids):
        raise RestError(
            422, BAD_PAYLOAD, "two entries have the same id: give each entry a different id"
        )
    count = await require_partition(cluster.producer, topic, None)
    sent = [
        await _send(cluster, topic, _entry_decoder, bytes(entry), count)
        async for entry in in_turns(entries, 1)
    ]
    successes, failures = [], []
    for name, item in zip(ids, sent, strict=True):
        result = await _acknowledged(item)
        if isinstance(result, RecordFailure):
            failure = {"error_code": result.error_code, "message": result.message}
            failures.append({"id": name, **failure})
        else:
            successes.append({"id": name, **_result(names, item, result)})
    return JSONResponse({"successes": successes, "failures": failures}, 207)


def _result(names: Names, sent: _Sent, metadata: RecordMetadata) -> dict[str, Any]:
    assert sent.record is not None, "a refused record has no offset"
    assert sent.data is not None, "a refused record has no offset"
    return result_of(names, sent.record, sent.data, metadata)


def result_of(
    names: Names, record: OutgoingRecord, data: ProducedRecord, metadata: RecordMetadata
) -> dict[str, Any]:
    """Return the result of a written record: its offset and timestamp, and the sizes of its key and value."""
    append_time_ms = metadata.log_append_time_ms
    timestamp_ms = record.timestamp_ms if append_time_ms < 0 else append_time_ms
    body = {
        "error_code": 200,
        "cluster_id": names.cluster_id,
        "topic_name": metadata.topic,
        "partition_id": metadata.partition,
        "offset": metadata.offset,
        "timestamp": _iso(timestamp_ms or 0),
    }
    for name, part, encoded in (
        ("key", data.key, record.key),
        ("value", data.value, record.value),
    ):
        if part is not None:
            body[name] = {"type": part.type, "size": len(encoded or b"")}
    return body


def _iso(timestamp_ms: int) -> str:
    moment = _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec="milliseconds")


def outgoing(record: ProducedRecord) -> OutgoingRecord:
    """Convert a record of a request to bytes. Raises RestError 422 for data that does not have its type."""
    return OutgoingRecord(
        _bytes_of(record.key, "key"),
        _bytes_of(record.value, "value"),
        record.partition_id,
        headers_of(record.headers),
        _ms_of(record.timestamp),
    )


def _bytes_of(given: RecordData | None, where: str) -> bytes | None:
    if given is None:
        return None
    if given.type != "STRING":
        return FORMATS[given.type.lower()].to_bytes(given.data, f"{where}.data")
    try:
        text = _text_decoder.decode(given.data)
    except msgspec.DecodeError as error:
        raise RestError(422, BAD_PAYLOAD, f"{where}.data: {error}") from None
    return None if text is None else text.encode()


def _ms_of(moment: datetime.datetime | None) -> int:
    """Return the record's timestamp in ms since the epoch. Without one, return the current time, because the response
    shows the timestamp.

    Raises:
        RestError: 422 if the time is before 1970 or after 9999.
    """
    if moment is None:
        return time.time_ns() // 1_000_000
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    timestamp_ms = int(moment.timestamp() * 1000)
    if not 0 <= timestamp_ms <= _TIMESTAMP_MS_MAX:
        words = f"timestamp {moment.isoformat()} is not within 1970 to 9999, in UTC"
        raise RestError(422, BAD_PAYLOAD, words)
    return timestamp_ms
