"""The encoding of metadata records: msgpack arrays whose types are checked on writing and on reading.

A record is `[type id, version, field, field, ...]` in the order of its dataclass. A batch is
`[format, controller epoch, [record, ...]]`. Names are not encoded, so a field may be renamed, but
fields must never be reordered. Reading checks each value against the field's type, so damaged or hostile
bytes raise `MetadataDecodeError` and never put an object of the wrong type into the image; lengths are
bounded by the bytes that are there (msgpack's own default). A type, a version or a field that this
program does not know raises `NewerProgramNeeded`, because ignoring it would give this process another
image than the others have.

The `metadata.version` of the cluster decides what may be written: each record is written in the highest
version that the level allows. A record or a field above the level is a bug of the writer, which an assert
reports.

The per-type functions are built once, from the annotations: a record costs some microseconds.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from odradek_protocol.metadata.records import (
    RECORD_TYPES,
    MetadataBatch,
    MetadataDecodeError,
    MetadataRecord,
    NewerProgramNeeded,
)

__all__ = [
    "MetadataDecodeError",
    "decode_batch",
    "decode_record",
    "decode_records",
    "encode_batch",
    "encode_record",
    "encode_records",
]

BATCH_FORMAT: Final = 1

_Reader = Callable[[Any], Any]  # Any: what msgpack returns, before it is checked
_Writer = Callable[[Any], Any]


def encode_batch(batch: MetadataBatch, *, level: int) -> bytes:
    """Encode a batch at this `metadata.version`; equal batches give equal bytes."""
    rows = [_row(record, level) for record in batch.records]
    return _packed([BATCH_FORMAT, batch.controller_epoch, rows])


def decode_batch(payload: bytes | memoryview) -> MetadataBatch:
    """Decode a batch; raises `MetadataDecodeError` for anything else."""
    value = _unpacked(payload)
    if not isinstance(value, tuple) or len(value) < 3:
        raise MetadataDecodeError("a batch is an array of three")
    batch_format, controller_epoch, rows = value[:3]
    if type(batch_format) is not int or batch_format < BATCH_FORMAT:
        raise MetadataDecodeError(f"batch format {batch_format!r} is not {BATCH_FORMAT}")
    if batch_format > BATCH_FORMAT or len(value) > 3:
        raise NewerProgramNeeded(f"a batch of format {batch_format} with {len(value)} parts")
    if not isinstance(rows, tuple):
        raise MetadataDecodeError("records are an array")
    return MetadataBatch(
        controller_epoch=_read_int(controller_epoch), records=tuple(map(_record, rows))
    )


def encode_record(record: MetadataRecord, *, level: int) -> bytes:
    """Encode one record, as snapshots hold it."""
    return _packed(_row(record, level))


def encode_records(records: Sequence[MetadataRecord], *, level: int) -> bytes:
    """Encode several records as one array."""
    return _packed([_row(record, level) for record in records])


def decode_record(payload: bytes | memoryview) -> MetadataRecord:
    """Decode one record; raises `MetadataDecodeError` for anything else."""
    return _record(_unpacked(payload))


def decode_records(payload: bytes | memoryview) -> tuple[MetadataRecord, ...]:
    """Decode an array of records; raises `MetadataDecodeError` for anything else."""
    value = _unpacked(payload)
    if not isinstance(value, tuple):
        raise MetadataDecodeError("records are an array")
    return tuple(map(_record, value))


def _packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value, use_bin_type=True))


def _unpacked(payload: bytes | memoryview) -> object:
    try:
        return msgpack.unpackb(payload, raw=False, use_list=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MetadataDecodeError(f"not msgpack: {type(error).__name__}: {error}") from error


class _Form(NamedTuple):
    """A version of a record: its number, and the fields of later versions with their defaults."""

    version: int
    later: list[tuple[str, object]]


class _Layout:
    """The layout of one dataclass: a reader and a writer per field, in order."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        hints = get_type_hints(cls)
        self.names = [f.name for f in fields(cls)]
        pairs = [_codec_of(hints[name]) for name in self.names]
        self.readers = [pair[0] for pair in pairs]
        self.writers = [pair[1] for pair in pairs]
        self.required = sum(
            f.default is MISSING and f.default_factory is MISSING for f in fields(cls)
        )
        assert all(f.default is MISSING for f in fields(cls)[: self.required]), cls
        self._since = [f.metadata.get("since", 0) for f in fields(cls)]
        assert self._since == sorted(self._since), cls
        self._forms: dict[int, _Form] = {}

    def form(self, level: int) -> _Form:
        """Return the version in which a record is written at this `metadata.version`."""
        form = self._forms.get(level)
        if form is None:
            version = sum(since <= level for since in self.cls.LEVELS) - 1  # type: ignore[attr-defined]  # set on each record type
            assert version >= 0, f"metadata.version {level} has no {self.cls.__name__}"
            later = [
                (f.name, f.default)
                for f, since in zip(fields(self.cls), self._since, strict=True)
                if since > version
            ]
            form = self._forms[level] = _Form(version, later)
        return form

    def write(self, value: object) -> list[Any]:
        return [
            write(getattr(value, name))
            for name, write in zip(self.names, self.writers, strict=True)
        ]

    def read(self, values: Sequence[Any]) -> Any:
        if len(values) < self.required:
            raise MetadataDecodeError(f"{self.cls.__name__}: {len(values)} fields are not enough")
        if len(values) > len(self.names):
            raise NewerProgramNeeded(
                f"{self.cls.__name__} with {len(values)} fields; this program knows {len(self.names)}"
            )
        # Not strict: an older writer did not know the last fields.
        named = zip(self.names, self.readers, values, strict=False)
        try:
            return self.cls(**{name: read(value) for name, read, value in named})
        except NewerProgramNeeded:
            raise
        except MetadataDecodeError as error:
            raise MetadataDecodeError(f"{self.cls.__name__}: {error}") from None


def _codec_of(hint: Any) -> tuple[_Reader, _Writer]:  # Any: a typing construct
    """Return reader and writer for a field's type."""
    hint = getattr(hint, "__supertype__", hint)  # a NewType is its base on the wire
    hint = getattr(hint, "__supertype__", hint)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        read, write = _codec_of(inner)
        return (
            lambda value: None if value is None else read(value),
            lambda value: None if value is None else write(value),
        )
    if get_origin(hint) is tuple:
        args = get_args(hint)
        if args[-1] is Ellipsis:
            return _sequence_codec(*_codec_of(args[0]))
        return _pair_codec([_codec_of(arg) for arg in args])
    if is_dataclass(hint):
        layout = _Layout(cast(type, hint))
        return (lambda value: layout.read(_read_array(value))), layout.write
    if issubclass(hint, IntEnum):
        return _enum_reader(hint), int
    return _SCALARS[hint]


def _sequence_codec(read: _Reader, write: _Writer) -> tuple[_Reader, _Writer]:
    return (
        lambda value: tuple([read(item) for item in _read_array(value)]),
        lambda value: [write(item) for item in value],
    )


def _pair_codec(pairs: list[tuple[_Reader, _Writer]]) -> tuple[_Reader, _Writer]:
    def read_pair(value: Any) -> tuple[Any, ...]:
        items = _read_array(value)
        if len(items) != len(pairs):
            raise MetadataDecodeError(f"{len(items)} items instead of {len(pairs)}")
        return tuple(read(item) for (read, _), item in zip(pairs, items, strict=True))

    return read_pair, lambda value: [w(item) for (_, w), item in zip(pairs, value, strict=True)]


def _enum_reader(enum: type[IntEnum]) -> _Reader:
    def read(value: Any) -> IntEnum:
        try:
            return enum(_read_int(value))
        except ValueError:
            raise MetadataDecodeError(f"{value!r} is not a value of {enum.__name__}") from None

    return read


def _read_array(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise MetadataDecodeError(f"{type(value).__name__} instead of an array")
    return value


def _read_int(value: Any) -> int:
    if type(value) is not int:
        raise MetadataDecodeError(f"{type(value).__name__} instead of an integer")
    return value


def _exactly(cls: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not cls:
            raise MetadataDecodeError(f"{type(value).__name__} instead of {cls.__name__}")
        return value

    return read


def _same(value: Any) -> Any:
    return value


_SCALARS: Final[dict[type, tuple[_Reader, _Writer]]] = {
    int: (_read_int, _same),
    bool: (_exactly(bool), _same),
    str: (_exactly(str), _same),
    bytes: (_exactly(bytes), bytes),
    float: (_exactly(float), float),
}
_LAYOUTS: Final = {cls: _Layout(cls) for cls in RECORD_TYPES}
_BY_TYPE_ID: Final = {cls.TYPE_ID: layout for cls, layout in _LAYOUTS.items()}
assert len(_BY_TYPE_ID) == len(RECORD_TYPES), "two records share a type id"


def _row(record: MetadataRecord, level: int) -> list[Any]:
    layout = _LAYOUTS[type(record)]
    version, later = layout.form(level)
    row = [record.TYPE_ID, version, *layout.write(record)]
    if later:
        for name, default in later:
            assert getattr(record, name) == default, (
                f"metadata.version {level} has no {name}: {record}"
            )
        del row[-len(later) :]
    return row


def _record(row: Any) -> MetadataRecord:
    values = _read_array(row)
    if len(values) < 2:
        raise MetadataDecodeError("a record begins with its type and version")
    type_id, version = _read_int(values[0]), _read_int(values[1])
    if type_id < 1 or version < 0:
        raise MetadataDecodeError(f"record type {type_id}, version {version}")
    layout = _BY_TYPE_ID.get(type_id)
    if layout is None:
        raise NewerProgramNeeded(f"unknown record type {type_id}")
    newest = len(layout.cls.LEVELS) - 1  # type: ignore[attr-defined]  # set on each record type
    if version > newest:
        raise NewerProgramNeeded(
            f"{layout.cls.__name__} version {version}; this program knows versions up to {newest}"
        )
    return cast(MetadataRecord, layout.read(values[2:]))
