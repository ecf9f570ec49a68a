"""Functions that convert objects to the bytes of keys and values, and back.

A serializer takes an object and returns bytes. A deserializer takes bytes and returns an object. For None (a null key,
or the value of a tombstone), both return None. Pass serializers to a producer, and deserializers to a consumer:

    client.producer(value_serializer=serializers.json)
    client.consumer("orders", value_deserializer=serializers.from_json)

Avro needs `odradek[avro]`.
"""

from __future__ import annotations

import csv
import io
import json as json_module
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from odradek.errors import MissingDependency

if TYPE_CHECKING:
    from google.protobuf.message import Message


__all__ = [
    "avro",
    "csv_row",
    "from_avro",
    "from_csv_row",
    "from_integer",
    "from_json",
    "from_protobuf",
    "from_text",
    "integer",
    "json",
    "protobuf",
    "raw",
    "text",
]

_INT64: Final = struct.Struct(">q")


def raw(item: bytes | bytearray | memoryview | None) -> bytes | None:
    """Return bytes unchanged. Raises TypeError for every other type, including str."""
    if item is None or isinstance(item, bytes):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"expected bytes, not {type(item).__name__}")


def text(item: str | None) -> bytes | None:
    """Encode text as UTF-8."""
    return None if item is None else item.encode()


def from_text(data: bytes | None) -> str | None:
    """Decode UTF-8. Raises UnicodeDecodeError if the bytes are not UTF-8."""
    return None if data is None else data.decode()


def integer(item: int | None) -> bytes | None:
    """Encode an integer as 8 bytes, big-endian and signed, as Kafka's LongSerializer does. Raises struct.error if the
    integer does not fit into 64 bits.
    """
    return None if item is None else _INT64.pack(item)


def from_integer(data: bytes | None) -> int | None:
    """Decode a big-endian signed integer of 8 bytes. Raises struct.error if there are not exactly 8 bytes."""
    if data is None:
        return None
    number: int = _INT64.unpack(data)[0]
    return number


def json(item: Any) -> bytes | None:
    """Encode an object as compact JSON in UTF-8. Raises TypeError if JSON cannot represent the object.

    None becomes a null key or value (a tombstone), not the JSON text `null`. NaN and infinities raise ValueError,
    because JSON does not have them.
    """
    if item is None:
        return None
    return json_module.dumps(
        item, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def from_json(data: bytes | None) -> Any:
    """Decode JSON. Raises ValueError if the bytes are not JSON."""
    return None if data is None else json_module.loads(data)


def csv_row(row: Iterable[Any] | None) -> bytes | None:
    """Encode the fields of one row as CSV (RFC 4180) in UTF-8, without a line end."""
    if row is None:
        return None
    line = io.StringIO(newline="")
    # The csv writer quotes a field with a line break only if the writer has a line terminator.
    csv.writer(line).writerow(row)
    return line.getvalue().removesuffix("\r\n").encode()


def from_csv_row(data: bytes | None) -> list[str] | None:
    """Decode the fields of one CSV row. Quoted fields may contain line breaks. Raises ValueError if there are several
    rows.
    """
    if data is None:
        return None
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(f"the record is not a row of CSV: {error}") from None
    if len(rows) > 1:
        raise ValueError(f"the record has {len(rows)} rows of CSV, but must have one")
    return rows[0] if rows else []


def avro(schema: dict[str, Any]) -> Callable[[Any], bytes | None]:
    """Return a serializer for this Avro schema. It writes plain Avro binary, without a header and without the
    schema.
    """
    fastavro = _fastavro()
    parsed = fastavro.parse_schema(schema)

    def serialize(item: Any) -> bytes | None:
        if item is None:
            return None
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, item)
        return out.getvalue()

    return serialize


def from_avro(
    schema: dict[str, Any], *, reader_schema: dict[str, Any] | None = None
) -> Callable[[bytes | None], Any]:
    """Return a deserializer for Avro data that was written with `schema`. The data is converted to `reader_schema`,
    unless that is None.

    The deserializer raises ValueError if bytes follow the datum, and errors of fastavro for damaged data.
    """
    fastavro = _fastavro()
    written = fastavro.parse_schema(schema)
    reader = None if reader_schema is None else fastavro.parse_schema(reader_schema)

    def deserialize(data: bytes | None) -> Any:
        if data is None:
            return None
        source = io.BytesIO(data)
        item = fastavro.schemaless_reader(source, written, reader)
        if source.tell() != len(data):
            raise ValueError(
                f"the record has {len(data) - source.tell()} bytes after the Avro datum"
            )
        return item

    return deserialize


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise MissingDependency("fastavro", "avro") from None
    return fastavro


M = TypeVar("M", bound="Message")


def protobuf(message: Message | None) -> bytes | None:
    """Encode a Protobuf message. Equal messages give the same bytes. Raises EncodeError if required fields are
    missing.
    """
    return None if message is None else message.SerializeToString(deterministic=True)


def from_protobuf(kind: type[M]) -> Callable[[bytes | None], M | None]:
    """Return a deserializer of Protobuf messages of this class. It raises DecodeError for damaged bytes."""

    def deserialize(data: bytes | None) -> M | None:
        return None if data is None else kind.FromString(data)

    return deserialize
