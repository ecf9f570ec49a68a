"""Embedded formats: how keys and values of records stand in JSON. The seam for Avro, Protobuf and JSON Schema.

binary: base64 strings. json: any JSON value, kept as compact UTF-8 text. A missing key or
value is null, which stays null.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final, Protocol

import orjson

from odradek_gateway.rest.errors import BAD_PAYLOAD, JSON_CONVERSION, RestError


class EmbeddedFormat(Protocol):
    """Both ways of one format."""

    name: str

    def to_bytes(self, value: Any, where: str) -> bytes | None:
        """What is written to the log; RestError 422 when the value is not of the format."""

    def from_bytes(self, data: bytes | None) -> Any:
        """What stands in JSON; RestError 422 when the bytes are not of the format."""


class BinaryFormat:
    """Base64."""

    name = "binary"

    def to_bytes(self, value: Any, where: str) -> bytes | None:
        """See EmbeddedFormat."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise RestError(
                422, BAD_PAYLOAD, f"{where} must be a base64 string in the binary format"
            )
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RestError(422, BAD_PAYLOAD, f"{where} is not base64: {error}") from None

    def from_bytes(self, data: bytes | None) -> Any:
        """See EmbeddedFormat."""
        return None if data is None else base64.b64encode(data).decode()


class JsonFormat:
    """Any JSON value."""

    name = "json"

    def to_bytes(self, value: Any, where: str) -> bytes | None:
        """See EmbeddedFormat."""
        return None if value is None else orjson.dumps(value)

    def from_bytes(self, data: bytes | None) -> Any:
        """See EmbeddedFormat."""
        if data is None:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise RestError(422, JSON_CONVERSION, f"a record is not JSON: {error}") from None


FORMATS: Final[Mapping[str, EmbeddedFormat]] = {"binary": BinaryFormat(), "json": JsonFormat()}
