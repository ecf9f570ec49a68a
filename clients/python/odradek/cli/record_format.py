"""Records as text: the output formats of `odradek consume`, and the JSON lines that `odradek produce --json` reads."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from odradek.cli.output import ESCAPES, EXIT_USAGE, OutputFormat, fail

if TYPE_CHECKING:
    from odradek_protocol.records.columns import Columns

Encoding = Literal["text", "json", "hex", "base64", "int", "double"]
"""How bytes are printed: as UTF-8 text, as JSON on one line, in hexadecimal digits, in base64, or as a number that
Kafka's serializers wrote (big-endian; 1, 2, 4 or 8 bytes).
"""
FORMAT_HELP: Final = (
    "Print each record in this format: %t topic, %p partition, %o offset, %d timestamp in ms, %k key, %v value, "
    "%h headers, %s size of the value in bytes, %% percent sign, \\n newline, \\t tab."
)
_TOKEN: Final = re.compile(r"%(.)|\\(.)", re.DOTALL)
_FIELDS: Final = frozenset("tpodkvhs%")
_NEEDED: Final = {
    "int": "1, 2, 4 or 8 bytes",
    "double": "4 or 8 bytes",
    "json": "JSON",
}
"""What the bytes must be to be printed in an encoding. Encodings that print all bytes are missing."""
_NAMES: Final = "surrogateescape"
"""How a header name that is not UTF-8 is decoded to a str, as in odradek_protocol.records."""
_FLOATS: Final = {4: ">f", 8: ">d"}

Show = Callable[[bytes], str | None]


class InvalidRecord(Exception):
    """A line of the input is not a record in JSON. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A record that `odradek produce` read. The record is a tombstone if its value is None."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def shown(data: bytes, encoding: Encoding) -> str | None:
    """Return bytes as text in this encoding; None if they are not valid in the encoding.

    JSON is not valid if a number is not finite (RFC 8259 has no NaN, and 1e400 is too large for a double), if a string
    has a surrogate, which UTF-8 cannot encode, or if arrays and objects are nested too deeply for Python's parser.
    """
    try:
        match encoding:
            case "hex":
                return data.hex()
            case "base64":
                return base64.b64encode(data).decode()
            case "json":
                return _json_text(json.loads(data))
            case "int" if len(data) in (1, 2, 4, 8):
                return str(int.from_bytes(data, "big", signed=True))
            case "double" if len(data) in _FLOATS:
                return str(struct.unpack(_FLOATS[len(data)], data)[0])
            case "text":
                return data.decode()
    except (ValueError, RecursionError):
        pass
    return None


def _json_text(item: Any) -> str:
    """Return a value as JSON on one line. Raises ValueError for a number that is not finite, and for a surrogate."""
    text = json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text


def renderer(
    form: str, *, key_as: Encoding, value_as: Encoding, unconverted: Counter[str]
) -> Callable[[Any], bytes]:
    """Return a function that converts a record to bytes by a format such as `%k: %v\\n`.

    A key or value that is not valid in its encoding is printed unchanged, and counted in `unconverted` as "key" or
    "value".
    """

    def encoded(data: bytes | None, encoding: Encoding, what: str) -> bytes:
        if data is None:
            return b""
        if encoding == "text":
            return data
        text = shown(data, encoding)
        unconverted[what] += text is None
        return data if text is None else text.encode()

    def token(record: Any, letter: str) -> bytes:
        match letter:
            case "t":
                return str(record.topic).encode()
            case "p":
                return str(record.partition).encode()
            case "o":
                return str(record.offset).encode()
            case "d":
                return str(record.timestamp_ms).encode()
            case "k":
                return encoded(record.key, key_as, "key")
            case "v":
                return encoded(record.value, value_as, "value")
            case "h":
                return b",".join(name_bytes(n) + b"=" + (v or b"") for n, v in record.headers)
            case "s":
                return str(len(record.value or b"")).encode()
        return b"%"

    def name_bytes(name: str) -> bytes:
        return name.encode("utf-8", _NAMES)

    pieces: list[bytes | str] = []  # Bytes are printed unchanged; a str is the letter of a field.
    position = 0
    for match in _TOKEN.finditer(form):
        pieces.append(form[position : match.start()].encode())
        if match[1]:
            if match[1] not in _FIELDS:
                fail(
                    f"--format has an unknown placeholder %{match[1]}. {FORMAT_HELP}",
                    status=EXIT_USAGE,
                )
            pieces.append(match[1])
        else:
            pieces.append(ESCAPES.get(match[2], match[2]).encode())
        position = match.end()
    pieces.append(form[position:].encode())
    return lambda record: b"".join(
        piece if isinstance(piece, bytes) else token(record, piece) for piece in pieces
    )


def rows_before(columns: Columns, stop: int) -> tuple[int, int]:
    """Return how many records have an offset below `stop`, and the offset of the last record in `columns`."""
    offsets = memoryview(columns.offset or b"").cast("q")
    return bisect_left(offsets, stop), offsets[-1]


def value_lines(columns: Columns, rows: int) -> bytes:
    """Return the values of the first `rows` records, each followed by a newline. A null value becomes an empty line."""
    if not rows or columns.value is None:
        return b""
    from odradek_protocol.records.codec import lines

    return lines(columns.value.data, columns.value.offsets, rows)


def json_renderer(
    *, key_as: Encoding, value_as: Encoding, unconverted: Counter[str]
) -> Callable[[Any], bytes]:
    """Return a function that converts a record to a line of JSON, which `record_of` can read.

    With the encoding json, keys and values become JSON values. Bytes that are not valid in their encoding become
    {"base64": "..."}. The JSON text null, which would look like a tombstone, and objects that begin with the field
    base64 become this, too. If the encoding is not text, bytes that are not valid are counted in `unconverted` as "key"
    or "value". `record_of` restores the bytes of every record only if both encodings are text: it cannot restore the
    blanks of a JSON value, for example.
    """

    def field(data: bytes | None, encoding: Encoding, what: str) -> str:
        if data is None:
            return "null"
        text = shown(data, encoding)
        unconverted[what] += text is None and encoding != "text"
        if text is None or (encoding == "json" and text.startswith(("null", '{"base64":'))):
            return json.dumps({"base64": base64.b64encode(data).decode()})
        return text if encoding == "json" else json.dumps(text, ensure_ascii=False)

    def name_field(name: str) -> str:
        return field(name.encode("utf-8", _NAMES), "text", "header")

    def render(record: Any) -> bytes:
        headers = (
            f"[{name_field(name)}, {field(value, 'text', 'header')}]"
            for name, value in record.headers
        )
        # The text of a JSON value is inserted as it is, because a value at the limit of nesting could not be encoded
        # as a part of the line.
        return (
            f'{{"topic": {json.dumps(record.topic)}, "partition": {record.partition},'
            f' "offset": {record.offset}, "timestamp_ms": {record.timestamp_ms},'
            f' "key": {field(record.key, key_as, "key")}, "value": {field(record.value, value_as, "value")},'
            f' "headers": [{", ".join(headers)}]}}\n'
        ).encode()

    return render


def unconverted_note(what: str, encoding: Encoding, count: int, output: OutputFormat) -> str:
    """Return a sentence about keys or values that are not valid in the encoding that the user chose."""
    form = 'as {"base64": ...}' if output is OutputFormat.JSON else "unchanged"
    were = f"{what} was" if count == 1 else f"{what}s were"
    needs = f" needs {_NEEDED[encoding]}" if encoding in _NEEDED else ""
    return f"{count:,} {were} printed {form}: --{what}-as {encoding}{needs}"


def key_in(line: bytes, field: str) -> bytes | None:
    """Return a field of a JSON object as the key of a record; None if the object does not have the field.

    `field` is a name, or names with dots between them. A string becomes UTF-8, any other value JSON text. Raises
    InvalidRecord if the line is not a JSON object, or if the field cannot be encoded.
    """
    value = _parsed(line)
    if not isinstance(value, dict):
        raise InvalidRecord("it is not a JSON object")
    if field in value:
        value = value[field]
    else:
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    return _bytes(value, _key)


def fields_of(line: bytes) -> list[str]:
    """Return the names of the fields of a JSON object, as `key_in` takes them. The name of a field of a nested object
    has dots.
    """

    def names(row: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in row.items():
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    return list(names(json.loads(line), ""))


def record_of(line: bytes) -> InputRecord:
    """Convert a line of JSON, as `odradek consume -o json` prints it, to a record. Only the field `value` is required.

    A key, value or header value is a string (encoded as UTF-8), {"base64": "..."} (for other bytes), or null. Any other
    JSON value is written as JSON text. `headers` may also be an object. The name of a header is a string or
    {"base64": "..."}. `topic` and `offset` are ignored.

    Raises:
        InvalidRecord: the line is not a JSON object, or a field is not valid.
    """
    row = _parsed(line)
    if not isinstance(row, dict) or "value" not in row:
        raise InvalidRecord('it is not a JSON object with "value"')
    if unknown := sorted(row.keys() - _JSON_FIELDS):
        raise InvalidRecord(
            f"the field {unknown[0]!r} is unknown: use {', '.join(sorted(_JSON_FIELDS))}"
        )
    headers = row.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str | dict)
        for pair in pairs
    ):
        raise InvalidRecord('"headers" is neither an object nor a list of [name, value]')
    return InputRecord(
        value=_bytes(row["value"]),
        key=_bytes(row.get("key")),
        headers=tuple((_name(name), _bytes(value)) for name, value in pairs),
        partition=_number(row, "partition"),
        timestamp_ms=_number(row, "timestamp_ms"),
    )


_JSON_FIELDS: Final = frozenset(
    {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
)


_TOO_DEEP: Final = "its arrays and objects are nested too deeply"


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidRecord(f"it is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRecord(_TOO_DEEP) from None


def _name(item: Any) -> str:
    """Return the name of a header, as the SDK represents it: a str in which surrogates stand for invalid UTF-8."""
    name = _bytes(item)
    is_encoded = isinstance(item, dict) and len(item) == 1 and isinstance(item.get("base64"), str)
    if name is None or not (isinstance(item, str) or is_encoded):
        raise InvalidRecord('the name of a header is neither a string nor {"base64": "..."}')
    return name.decode("utf-8", _NAMES)


def _encoded(item: Any) -> bytes | None:
    match item:
        case None:
            return None
        case str():
            return item.encode()
        case {"base64": str(text)} if len(item) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                raise InvalidRecord(f"{text!r} is not base64") from None
    return _json_text(item).encode()


def _key(item: Any) -> bytes | None:
    """Like `_encoded`, for a field that becomes a key: non-ASCII characters in JSON are escaped, and {"base64": "..."}
    is an object like any other.
    """
    if item is None or isinstance(item, str):
        return _encoded(item)
    return json.dumps(item, allow_nan=False, separators=(",", ":")).encode()


def _bytes(item: Any, encode: Callable[[Any], bytes | None] = _encoded) -> bytes | None:
    """Return what `encode` returns. Raises InvalidRecord if the item cannot be encoded."""
    try:
        return encode(item)
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            f"{error.object[error.start]!r} is a surrogate, which UTF-8 cannot encode"
        ) from None
    except ValueError:
        raise InvalidRecord(
            "it has a number that is not finite, which JSON does not have"
        ) from None
    except RecursionError:
        raise InvalidRecord(_TOO_DEEP) from None


def _number(row: dict[str, Any], name: str) -> int | None:
    number = row.get(name)
    if number in (None, -1):  # `odradek consume` prints -1 for a record without a timestamp.
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidRecord(f'"{name}" is {number!r}, but must be an integer of at least 0')
    return number


ENCODINGS: Final = get_args(Encoding)
