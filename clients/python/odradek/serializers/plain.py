"""Bytes, text, integers, JSON, rows of CSV."""

from __future__ import annotations

import csv
import io
import json as json_module
import struct
from collections.abc import Iterable
from typing import Any, Final

_INT64: Final = struct.Struct(">q")


def raw(item: bytes | bytearray | memoryview | None) -> bytes | None:
    """Bytes as they are. Raises TypeError for anything else, text included."""
    if item is None or isinstance(item, bytes):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"{type(item).__name__} is not bytes")


def text(item: str | None) -> bytes | None:
    """UTF-8."""
    return None if item is None else item.encode()


def from_text(data: bytes | None) -> str | None:
    """Raises UnicodeDecodeError for bytes that are no UTF-8."""
    return None if data is None else data.decode()


def integer(item: int | None) -> bytes | None:
    """8 bytes, big-endian, signed: Kafka's LongSerializer. Raises struct.error beyond 64 bits."""
    return None if item is None else _INT64.pack(item)


def from_integer(data: bytes | None) -> int | None:
    """Raises struct.error unless there are 8 bytes."""
    if data is None:
        return None
    number: int = _INT64.unpack(data)[0]
    return number


def json(item: Any) -> bytes | None:
    """Compact UTF-8 JSON. None is a null record, not the JSON `null`. Raises TypeError, ValueError.

    NaN and infinities are refused: JSON has none.
    """
    if item is None:
        return None
    return json_module.dumps(
        item, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def from_json(data: bytes | None) -> Any:
    """Raises ValueError for bytes that are no JSON."""
    return None if data is None else json_module.loads(data)


def csv_row(row: Iterable[Any] | None) -> bytes | None:
    """One row of CSV (RFC 4180) in UTF-8, without a line end."""
    if row is None:
        return None
    line = io.StringIO(newline="")
    csv.writer(line).writerow(row)  # its own line end makes it quote fields that hold one
    return line.getvalue().removesuffix("\r\n").encode()


def from_csv_row(data: bytes | None) -> list[str] | None:
    """The fields of one row; line breaks within quotes belong to a field. Raises ValueError for more rows."""
    if data is None:
        return None
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(f"no row of CSV: {error}") from None
    if len(rows) > 1:
        raise ValueError(f"{len(rows)} rows of CSV in one record")
    return rows[0] if rows else []
