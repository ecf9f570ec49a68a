"""Records in requests of v2 and v3: their embedded formats, and producing them.

An embedded format defines how the keys and values of records are represented in JSON. In `binary` they are base64
strings. In `json` they are any JSON values; the log stores the bytes as the client wrote them, so no number is rounded.
Avro, Protobuf and JSON Schema are not supported. A missing key or value is a null key or value in the log.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec

from odradek import errors
from odradek.cluster.turns import slices_in_turns
from odradek.producer.delivery import DeliveryFuture, RecordMetadata
from odradek.producer.producer import Producer
from odradek_gateway.errors import (
    BAD_PAYLOAD,
    JSON_CONVERSION,
    KAFKA_ERROR,
    KAFKA_RETRIABLE_ERROR,
    PARTITION_NOT_FOUND,
    RestError,
    rest_error_of,
)
from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, LEGACY, PLAIN
from odradek_gateway.rest.record_lists import RecordList
from odradek_gateway.rest.requests import INT32_MAX, INT64_MAX, JsonBody

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
RECORDS_MAX: Final = 50_000
NULL: Final = msgspec.Raw(b"null")
Base64 = Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": BASE64_PATTERN})]
Partition = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


def _null() -> msgspec.Raw:
    return NULL


class Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record header. Its value is base64 in every embedded format."""

    name: str
    value: Base64 | None = None


class BinaryRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record whose key and value are base64; `timestamp` is in ms since the epoch."""

    key: Base64 | None = None
    value: Base64 | None = None
    partition: Partition | None = None
    headers: list[Header] | None = None
    timestamp: TimestampMs | None = None


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record whose key and value are any JSON values; `timestamp` is in ms since the epoch."""

    key: msgspec.Raw = msgspec.field(default_factory=_null)
    value: msgspec.Raw = msgspec.field(default_factory=_null)
    partition: Partition | None = None
    headers: list[Header] | None = None
    timestamp: TimestampMs | None = None


class _Schemas(msgspec.Struct):
    """Fields of a produce request that name schemas. They are accepted and ignored, because the supported formats have
    no schemas.
    """

    key_schema: str | None = None
    key_schema_id: int | None = None
    value_schema: str | None = None
    value_schema_id: int | None = None


class BinaryRecords(_Schemas, kw_only=True):
    """The body of a v2 produce request in the format `binary`."""

    records: Annotated[list[BinaryRecord], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


class JsonRecords(_Schemas, kw_only=True):
    """The body of a v2 produce request in the format `json`."""

    records: Annotated[list[JsonRecord], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


class RawRecords(_Schemas, kw_only=True):
    """The body of a v2 produce request in any format. Its records are not decoded."""

    records: list[msgspec.Raw]


class EmbeddedFormat(Protocol):
    """Converts keys and values between their form in JSON and the bytes in the log."""

    @property
    def body(self) -> JsonBody[Any]:
        """The declared body of a v2 produce request in this format."""

    @property
    def records(self) -> RecordList[Any]:
        """Reads the records of a v2 produce request in this format; the request may have any length."""

    def outgoing(self, record: Any) -> OutgoingRecord:
        """Convert a record of a request to bytes. Raises RestError 422."""

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """Convert a JSON value to bytes for the log. Raises RestError 422 if the value does not have this format.

        `where` names the value in the error message.
        """

    def from_bytes(self, data: bytes | None) -> Any:
        """Convert bytes of the log to a value that msgspec encodes as JSON. Raises RestError 42203 if the bytes do not
        have this format.
        """


class BinaryFormat:
    """The format `binary`: keys and values are base64 strings in JSON, and their decoded bytes in the log."""

    def __init__(self) -> None:
        self.body = JsonBody(
            BinaryRecords,
            media_types=(BINARY_V2, PLAIN, LEGACY),
            is_v2=True,
            has_records=True,
            example={"records": [{"key": "a2V5", "value": "aGVsbG8="}]},
        )
        self.records = RecordList(self.body, BinaryRecord, RawRecords, records_max=RECORDS_MAX)
        self._decoder: msgspec.json.Decoder[bytes | None] = msgspec.json.Decoder(bytes | None)

    def outgoing(self, record: BinaryRecord) -> OutgoingRecord:
        """Convert a record of a request. msgspec has already decoded its base64."""
        headers = headers_of(record.headers)
        return OutgoingRecord(record.key, record.value, record.partition, headers, record.timestamp)

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """Decode a base64 string; JSON's null becomes None. `where` names the value in the error message."""
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise RestError(422, BAD_PAYLOAD, f"{where} is not base64: {error}") from None

    def from_bytes(self, data: bytes | None) -> str | None:
        """Encode bytes as base64."""
        return None if data is None else base64.b64encode(data).decode()


class JsonFormat:
    """The format `json`: keys and values are any JSON values, stored byte for byte as the client wrote them."""

    def __init__(self) -> None:
        self.body = JsonBody(
            JsonRecords,
            media_types=(JSON_V2,),
            is_v2=True,
            has_records=True,
            example={"records": [{"key": "key", "value": {"hello": "world"}}]},
        )
        self.records = RecordList(self.body, JsonRecord, RawRecords, records_max=RECORDS_MAX)
        self._check = msgspec.json.Decoder(msgspec.Raw)

    def outgoing(self, record: JsonRecord) -> OutgoingRecord:
        """Return the record to produce. Its key and value keep the bytes of JSON that the client wrote."""
        headers = headers_of(record.headers)
        return OutgoingRecord(
            _kept(record.key), _kept(record.value), record.partition, headers, record.timestamp
        )

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """Return the bytes of a JSON value unchanged, or None for JSON's null."""
        return _kept(data)

    def from_bytes(self, data: bytes | None) -> msgspec.Raw | None:
        """Return the bytes as a JSON value. Raises RestError 42203 if they are not JSON."""
        if data is None:
            return None
        try:
            bytes(data).decode()
            return self._check.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RestError(422, JSON_CONVERSION, f"not JSON: {error}") from None


def headers_of(headers: list[Header] | None) -> Headers | None:
    """Convert the headers of a request to the form that the producer takes."""
    return None if headers is None else [(header.name, header.value) for header in headers]


def _kept(data: msgspec.Raw) -> bytes | None:
    text = bytes(data)
    return None if text == b"null" else text


FORMATS: Final[Mapping[str, EmbeddedFormat]] = {"binary": BinaryFormat(), "json": JsonFormat()}


Headers = list[tuple[str, bytes | None]]


class OutgoingRecord(NamedTuple):
    """One record with its key and value as bytes, ready for the producer. A named tuple is faster to create than other
    types, and a request may have thousands of records.
    """

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """The reason why one record was not written, with Confluent's error code and the matching HTTP status."""

    error_code: int
    message: str
    status: int


async def require_partition(producer: Producer, topic: str, partition: int | None) -> int:
    """Return the topic's number of partitions.

    Raises:
        UnknownTopic: the topic does not exist.
        RestError: 40402 if the topic has no partition `partition`.
    """
    count = await producer.partitions_for(topic)
    if partition is not None and not 0 <= partition < count:
        raise RestError(
            404,
            PARTITION_NOT_FOUND,
            f"topic {topic} has partitions 0 to {count - 1}, not {partition}",
        )
    return count


async def send_all(
    producer: Producer, topic: str, records: Sequence[OutgoingRecord], partition_count: int
) -> list[RecordMetadata | RecordFailure]:
    """Send all records, wait for their acknowledgements, and return the outcome of each, in order."""
    futures = [
        await hand_over(producer, topic, record, partition_count)
        async for some in slices_in_turns(records)
        for record in some
    ]
    outcomes: list[RecordMetadata | RecordFailure] = []
    async for some in slices_in_turns(futures):
        for future in some:
            if isinstance(future, RecordFailure):
                outcomes.append(future)
            # After the first wait most futures are done, and `settled` costs less than awaiting a finished future.
            elif future.done():
                outcomes.append(settled(future))
            else:
                outcomes.append(await outcome(future))
    return outcomes


async def hand_over(
    producer: Producer, topic: str, record: OutgoingRecord, partition_count: int
) -> DeliveryFuture | RecordFailure:
    """Pass one record to the producer. The call waits for space in the producer's buffer, but not for the
    acknowledgement. Returns a RecordFailure if the producer refuses the record.
    """
    if record.partition is not None and not 0 <= record.partition < partition_count:
        words = f"topic {topic} has partitions 0 to {partition_count - 1}, not {record.partition}"
        return RecordFailure(PARTITION_NOT_FOUND, words, 404)
    try:
        return await producer.send(
            topic,
            record.value,
            key=record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )
    except errors.OdradekError as error:
        return failure_of(error)


async def outcome(future: DeliveryFuture) -> RecordMetadata | RecordFailure:
    """Wait until one record is acknowledged or has failed, and return the outcome."""
    try:
        return await future
    except errors.OdradekError as error:
        return failure_of(error)


def settled(future: DeliveryFuture) -> RecordMetadata | RecordFailure:
    """Return the outcome of a record whose future is done."""
    try:
        return future.result()
    except errors.OdradekError as error:
        return failure_of(error)


def failure_of(error: errors.OdradekError) -> RecordFailure:
    """Return the failure of a record. Its code is 50003 for a retriable error, 50002 for any other error of the
    cluster, and the code of the HTTP error for 401, 403, 404 and 413.
    """
    response = rest_error_of(error)
    if response.status in (401, 403, 404, 413):
        return RecordFailure(response.error_code, response.message, response.status)
    is_retriable = error.retriable or response.error_code == KAFKA_RETRIABLE_ERROR
    code = KAFKA_RETRIABLE_ERROR if is_retriable else KAFKA_ERROR
    return RecordFailure(code, response.message, response.status)
