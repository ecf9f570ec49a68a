"""Embedded formats: how keys and values of records stand in JSON. The seam for Avro, Protobuf and JSON Schema.

binary: base64 strings. json: any JSON value, kept byte for byte as the client wrote it, so that no number is rounded.
A missing key or value is null, which stays null.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec

from odradek_gateway.rest.errors import BAD_PAYLOAD, JSON_CONVERSION, RestError
from odradek_gateway.rest.media_types import BINARY_V2, JSON_V2, LEGACY, PLAIN
from odradek_gateway.rest.produce import Headers, OutgoingRecord
from odradek_gateway.rest.request_bodies import INT32_MAX, INT64_MAX, JsonBody

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
RECORDS_MAX: Final = 50_000
NULL: Final = msgspec.Raw(b"null")
Base64 = Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": BASE64_PATTERN})]
Partition = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


def _null() -> msgspec.Raw:
    return NULL


class Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A header; its value is base64 in every format."""

    name: str
    value: Base64 | None = None


class BinaryRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Key and value in base64; `timestamp` in ms since the epoch."""

    key: Base64 | None = None
    value: Base64 | None = None
    partition: Partition | None = None
    headers: list[Header] | None = None
    timestamp: TimestampMs | None = None


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Key and value are JSON; `timestamp` in ms since the epoch."""

    key: msgspec.Raw = msgspec.field(default_factory=_null)
    value: msgspec.Raw = msgspec.field(default_factory=_null)
    partition: Partition | None = None
    headers: list[Header] | None = None
    timestamp: TimestampMs | None = None


class _Schemas(msgspec.Struct):
    """What a produce request may name besides its records; for the formats with schemas."""

    key_schema: str | None = None
    key_schema_id: int | None = None
    value_schema: str | None = None
    value_schema_id: int | None = None


class BinaryRecords(_Schemas, kw_only=True):
    """A produce request."""

    records: Annotated[list[BinaryRecord], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


class JsonRecords(_Schemas, kw_only=True):
    """A produce request."""

    records: Annotated[list[JsonRecord], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]


class EmbeddedFormat(Protocol):
    """Both ways of one format."""

    @property
    def body(self) -> JsonBody[Any]:
        """A produce request of v2."""

    def outgoing(self, request: Any) -> list[OutgoingRecord]:
        """Its records as bytes; RestError 422."""

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """One JSON value as it is written to the log; RestError 422 when it is not of the format."""

    def from_bytes(self, data: bytes | None) -> Any:
        """What msgspec puts into JSON; RestError 42203 when the bytes are not of the format."""


class BinaryFormat:
    """Base64."""

    def __init__(self) -> None:
        self.body = JsonBody(BinaryRecords, media_types=(BINARY_V2, PLAIN, LEGACY), is_v2=True)
        self._decoder: msgspec.json.Decoder[bytes | None] = msgspec.json.Decoder(bytes | None)

    def outgoing(self, request: BinaryRecords) -> list[OutgoingRecord]:
        """See EmbeddedFormat."""
        return [
            OutgoingRecord(r.key, r.value, r.partition, headers_of(r.headers), r.timestamp)
            for r in request.records
        ]

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """See EmbeddedFormat."""
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise RestError(422, BAD_PAYLOAD, f"{where} is not base64: {error}") from None

    def from_bytes(self, data: bytes | None) -> str | None:
        """See EmbeddedFormat."""
        return None if data is None else base64.b64encode(data).decode()


class JsonFormat:
    """Any JSON value."""

    def __init__(self) -> None:
        self.body = JsonBody(JsonRecords, media_types=(JSON_V2,), is_v2=True)
        self._check = msgspec.json.Decoder(msgspec.Raw)

    def outgoing(self, request: JsonRecords) -> list[OutgoingRecord]:
        """See EmbeddedFormat."""
        return [
            OutgoingRecord(
                _kept(r.key), _kept(r.value), r.partition, headers_of(r.headers), r.timestamp
            )
            for r in request.records
        ]

    def to_bytes(self, data: msgspec.Raw, where: str) -> bytes | None:
        """See EmbeddedFormat."""
        return _kept(data)

    def from_bytes(self, data: bytes | None) -> msgspec.Raw | None:
        """See EmbeddedFormat."""
        if data is None:
            return None
        try:
            bytes(data).decode()
            return self._check.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RestError(422, JSON_CONVERSION, f"not JSON: {error}") from None


def headers_of(headers: list[Header] | None) -> Headers | None:
    """As the producer takes them."""
    return None if headers is None else [(one.name, one.value) for one in headers]


def _kept(data: msgspec.Raw) -> bytes | None:
    text = bytes(data)
    return None if text == b"null" else text


FORMATS: Final[Mapping[str, EmbeddedFormat]] = {"binary": BinaryFormat(), "json": JsonFormat()}
