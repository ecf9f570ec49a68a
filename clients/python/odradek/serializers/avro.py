"""Avro with a schema that both sides know. Needs fastavro: `odradek[avro]`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from odradek.errors import MissingDependency


def avro(schema: dict[str, Any]) -> Callable[[Any], bytes | None]:
    """A serializer by this schema: the bare Avro binary, without a header or the schema."""
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
    """A deserializer of what was written by `schema`, seen as `reader_schema` (None: the same).

    Raises ValueError for bytes after the item, and what fastavro raises for damaged ones.
    """
    fastavro = _fastavro()
    written = fastavro.parse_schema(schema)
    wanted = None if reader_schema is None else fastavro.parse_schema(reader_schema)

    def deserialize(data: bytes | None) -> Any:
        if data is None:
            return None
        source = io.BytesIO(data)
        item = fastavro.schemaless_reader(source, written, wanted)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes after the Avro item")
        return item

    return deserialize


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise MissingDependency("fastavro", "avro") from None
    return fastavro
