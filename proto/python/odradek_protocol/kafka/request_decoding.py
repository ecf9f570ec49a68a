"""Decoders of requests that do not trust their input. They are generated from the schemas of kafka-python's classes.

kafka-python's own decoder is not safe for a server: it slices past the end without an error, ignores bytes after the
message, reads varints of any length, and copies all remaining bytes for every tagged field. The decoders of this module
check the following:

- A length may not exceed the number of remaining bytes, nor a count the number of items that these bytes could hold.
  All counts of a request together may not exceed `ITEMS_MAX`, so that no request takes more than about 30 ms.
- A varint may not be too long. A field may be null only if the version allows it.
- A string must be valid UTF-8 and have at most `STRING_BYTES_MAX` bytes (the int16 length of versions that are not
  flexible cannot be larger). A topic name has at most `TOPIC_NAME_BYTES_MAX` bytes, except in requests whose response
  has an error code for a name that is too long (`_ANSWERS_LONG_NAMES`).
- The tags of tagged fields must rise. A known tagged field must fill its size; unknown ones are skipped.
- At most `TRAILING_BYTES_MAX` bytes may follow the message. Such bytes are ignored, as in Kafka, because librdkafka
  writes four bytes where the encoding of a null array is one byte (Metadata of all topics), and writes the end of a
  message twice (AlterUserScramCredentials).

The decoders return objects of the classes in `messages`, with UUIDs as 16 raw bytes. The generated code is one flat
function for each message and version; `compile_decoder` shows an example.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

from odradek_protocol.identity import TOPIC_NAME_BYTES_MAX
from odradek_protocol.kafka.api_keys import ITEMS_MAX, ApiKey, is_flexible
from odradek_protocol.kafka.messages import MESSAGES, Message
from odradek_protocol.primitives import ByteBuffer, Malformed, read_uvarint

T = TypeVar("T")
STRING_BYTES_MAX: Final = 32_767
TRAILING_BYTES_MAX: Final = 8
RequestDecoder = Callable[[ByteBuffer], Message]
RequestSteps = Callable[[ByteBuffer], Generator[None, None, Message]]

_FIXED: Final = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "bool": ("?", 1),
    "bitfield": ("i", 4),
}
_ANSWERS_LONG_NAMES: Final = frozenset(
    {
        "MetadataRequest",
        "CreateTopicsRequest",
        "DeleteTopicsRequest",
        "DescribeTopicPartitionsRequest",
    }
)
_UNDERRUN: Final = (struct.error, IndexError)


def all_steps(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end without a pause, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


_decoders: dict[tuple[ApiKey, int], RequestDecoder] = {}
_decoders_in_steps: dict[tuple[ApiKey, int], RequestSteps] = {}


def decode_request(key: ApiKey, version: int, body: ByteBuffer) -> Message:
    """Decode the message of a request, which begins after the request header. The only exception is Malformed.

    At most `ITEMS_MAX` array elements are decoded, which takes at most about 30 ms.
    """
    decoder = _decoders.get((key, version))
    if decoder is None:
        decoder = _decoders[key, version] = compile_decoder(
            MESSAGES[key].request, version, is_flexible=is_flexible(key, version)
        )
    return decoder(body)


def decode_request_in_steps(
    key: ApiKey, version: int, body: ByteBuffer
) -> Generator[None, None, Message]:
    """Decode like `decode_request`, but as a generator, for long requests. It yields at its start and after each array
    item that is not a number, and returns the message.
    """
    decoder = _decoders_in_steps.get((key, version))
    if decoder is None:
        decoder = _decoders_in_steps[key, version] = compile_decoder_in_steps(
            MESSAGES[key].request, version, is_flexible=is_flexible(key, version)
        )
    return decoder(body)


def compile_decoder(message: type[Message], version: int, *, is_flexible: bool) -> RequestDecoder:
    """Generate a function that decodes bytes to an object of the class `message`. The function raises Malformed.

    The code for version 3 of Heartbeat, shortened:

        def decode(data):
            end = len(data); pos = 0; items = 10000
            obj = new(cls0); obj._version = 3; ...
            n1 = unpack_from(">h", data, pos)[0]; pos += 2
            if n1 < 0 or n1 > end - pos: raise Malformed(...)
            obj.group_id = str(data[pos:pos + n1], "utf-8"); pos += n1
            obj.generation_id = unpack_from(">i", data, pos)[0]; pos += 4
            ...
            if end - pos > 8 or pos > end: raise Malformed(...)
            return obj
    """
    generated = _generated(message, version, is_flexible=is_flexible, in_steps=False)
    name = f"{message.__name__} {version}"

    def decode(data: ByteBuffer) -> Any:
        try:
            return generated(data)
        except _UNDERRUN:
            raise Malformed(f"{name}: the bytes end within a field") from None
        except UnicodeDecodeError:
            raise Malformed(f"{name}: a string is not UTF-8") from None

    return decode


def compile_decoder_in_steps(
    message: type[Message], version: int, *, is_flexible: bool
) -> RequestSteps:
    """Generate a generator function that decodes like the function of `compile_decoder`, but yields at its start and
    after each array item that is not a number.

    So the decoding of a long request can be spread over many iterations of the event loop. The generator returns the
    message.
    """
    generated = _generated(message, version, is_flexible=is_flexible, in_steps=True)
    name = f"{message.__name__} {version}"

    def decode(data: ByteBuffer) -> Generator[None, None, Any]:
        try:
            return (yield from generated(data))
        except _UNDERRUN:
            raise Malformed(f"{name}: the bytes end within a field") from None
        except UnicodeDecodeError:
            raise Malformed(f"{name}: a string is not UTF-8") from None

    return decode


def _generated(message: Any, version: int, *, is_flexible: bool, in_steps: bool) -> Any:
    source = _Source(
        version, is_flexible, message.__name__ in _ANSWERS_LONG_NAMES, in_steps=in_steps
    )
    source.struct(message._struct, message[None], "obj", 1)
    lines = [
        "def decode(data):",
        "    end = len(data)",
        "    pos = 0",
        f"    items = {ITEMS_MAX}",
        *(("    yield",) if in_steps else ()),
        *source.lines,
        f"    if end - pos > {TRAILING_BYTES_MAX} or pos > end:",
        "        raise Malformed(f'the message ends at {pos} of {end} bytes')",
        "    return obj",
    ]
    scope: dict[str, Any] = {
        "Malformed": Malformed,
        "uvarint": read_uvarint,
        "unpack_from": struct.unpack_from,
        "new": object.__new__,
        **source.scope,
    }
    exec(compile("\n".join(lines), f"<{message.__name__} {version}>", "exec"), scope)
    return scope["decode"]


class _Source:
    """The source code of one generated function. Each variable name occurs once. `level` is the indentation of a line.

    Each method with the argument `target` generates code that decodes a value and assigns it to the expression
    `target`.
    """

    def __init__(
        self, version: int, is_flexible: bool, has_long_names: bool, *, in_steps: bool
    ) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self._version = version
        self._flexible = is_flexible
        self._has_long_names = has_long_names
        self._in_steps = in_steps
        self._names = 0

    def struct(self, field: Any, cls: Any, target: str, level: int) -> None:
        """Generate code that decodes a struct's fields and tagged fields; `target` becomes an object of `cls`."""
        holder = self._name("cls")
        self.scope[holder] = cls
        self._emit(level, f"{target} = new({holder})")
        self._emit(level, f"{target}._version = {self._version}")
        self._emit(level, f"{target}.tags = {target}.unknown_tags = None")
        run: list[Any] = []
        for inner in field.untagged_fields(self._version):
            if inner._type_str in _FIXED and not inner.is_array():
                run.append(inner)
                continue
            self._fixed_run(run, target, level)
            run = []
            self._value(inner, f"{target}.{inner.name}", level)
        self._fixed_run(run, target, level)
        if self._flexible:
            self._tags(field, target, level)

    def _fixed_run(self, fields: Sequence[Any], target: str, level: int) -> None:
        if not fields:
            return
        form = "".join(_FIXED[field._type_str][0] for field in fields)
        size = sum(_FIXED[field._type_str][1] for field in fields)
        names = ", ".join(f"{target}.{field.name}" for field in fields)
        self._emit(level, f"{names}, = unpack_from('>{form}', data, pos)")
        self._emit(level, f"pos += {size}")

    def _value(self, field: Any, target: str, level: int, *, is_element: bool = False) -> None:
        """Generate code that decodes a field or, with `is_element`, an element of an array, which is never null."""
        kind = field._type_str
        if field.is_struct_array() or field.is_array():
            self._array(field, target, level)
        elif field.is_struct():
            self._nested(field, target, level)
        elif kind in _FIXED:
            form, size = _FIXED[kind]
            self._emit(level, f"{target} = unpack_from('>{form}', data, pos)[0]")
            self._emit(level, f"pos += {size}")
        elif kind == "uuid":
            self._emit(level, "if end - pos < 16:")
            self._emit(level + 1, "raise IndexError")
            self._emit(level, f"{target} = bytes(data[pos:pos + 16])")
            self._emit(level, "pos += 16")
        elif kind == "string":
            read = "str(data[pos:pos + {0}], 'utf-8')"
            self._sized(field, target, level, read, ">h", 2, is_element=is_element)
        else:
            assert kind in ("bytes", "records"), kind
            read = "bytes(data[pos:pos + {0}])"
            self._sized(field, target, level, read, ">i", 4, is_element=is_element)

    def _sized(
        self,
        field: Any,
        target: str,
        level: int,
        read: str,
        form: str,
        form_size: int,
        *,
        is_element: bool,
    ) -> None:
        length = self._name("n")
        self._length(length, level, form, form_size)
        limit = self._bytes_max(field)
        if limit is not None:
            self._emit(level, f"if {length} > {limit}:")
            self._emit(
                level + 1,
                f"raise Malformed(f'{field.name}: {{{length}}} bytes, the most is {limit}')",
            )
        self._emit(level, f"if 0 <= {length} <= end - pos:")
        self._emit(level + 1, f"{target} = {read.format(length)}")
        self._emit(level + 1, f"pos += {length}")
        self._null_or_refuse(field, target, length, level, may_be_null=not is_element)

    def _bytes_max(self, field: Any) -> int | None:
        """Return the most bytes that a string field may have. Return None for fields of other types, and if the int16
        length is the only limit.
        """
        if field._type_str != "string":
            return None
        if field._json.get("entityType") == "topicName" and not self._has_long_names:
            return TOPIC_NAME_BYTES_MAX
        return STRING_BYTES_MAX if self._flexible else None

    def _array(self, field: Any, target: str, level: int) -> None:
        count, items, item = self._name("n"), self._name("list"), self._name("item")
        inner = field.array_of
        self._length(count, level, ">i", 4)
        self._emit(level, f"if 0 <= {count} <= (end - pos) // {self._least(inner)}:")
        self._emit(level + 1, f"items -= {count}")
        self._emit(level + 1, "if items < 0:")
        self._emit(level + 2, f"raise Malformed('more than {ITEMS_MAX} items in a request')")
        self._emit(level + 1, f"{target} = {items} = []")
        if not field.is_struct_array() and inner._type_str in _FIXED:
            form, size = _FIXED[inner._type_str]
            self._emit(level + 1, f"{items}.extend(unpack_from(f'>{{{count}}}{form}', data, pos))")
            self._emit(level + 1, f"pos += {count} * {size}")
        else:
            self._emit(level + 1, f"for _ in range({count}):")
            if field.is_struct_array():
                self.struct(inner, inner.data_class, item, level + 2)
            else:
                self._value(inner, item, level + 2, is_element=True)
            self._emit(level + 2, f"{items}.append({item})")
            if self._in_steps:
                self._emit(level + 2, "yield")
        self._null_or_refuse(field, target, count, level)

    def _nested(self, field: Any, target: str, level: int) -> None:
        holder = self._name("one")
        if field.nullable_for_version_q(self._version):
            flag = self._name("flag")
            self._emit(level, f"{flag} = data[pos]")
            self._emit(level, "pos += 1")
            self._emit(level, f"if {flag} == 0xFF:")
            self._emit(level + 1, f"{target} = None")
            self._emit(level, "else:")
            level += 1
        self.struct(field, field.data_class, holder, level)
        self._emit(level, f"{target} = {holder}")

    def _tags(self, field: Any, target: str, level: int) -> None:
        count, tag, last = self._name("n"), self._name("tag"), self._name("last")
        size, stop = self._name("size"), self._name("stop")
        self._emit(level, f"{count}, pos = uvarint(data, pos) if data[pos] else (0, pos + 1)")
        self._emit(level, f"{last} = -1")
        self._emit(level, f"items -= {count}")
        self._emit(level, "if items < 0:")
        self._emit(level + 1, f"raise Malformed('more than {ITEMS_MAX} items in a request')")
        self._emit(level, f"for _ in range({count}):")
        self._emit(level + 1, f"{tag}, pos = uvarint(data, pos)")
        self._emit(level + 1, f"{size}, pos = uvarint(data, pos)")
        self._emit(level + 1, f"{stop} = pos + {size}")
        self._emit(level + 1, f"if {tag} <= {last} or {stop} > end:")
        self._emit(level + 2, f"raise Malformed(f'tag {{{tag}}} of {{{size}}} bytes at {{pos}}')")
        self._emit(level + 1, f"{last} = {tag}")
        for tagged in field.tagged_fields(self._version)._tags.values():
            self._emit(level + 1, f"if {tag} == {tagged.tag}:")
            self._value(tagged, f"{target}.{tagged.name}", level + 2)
            self._emit(level + 2, f"if pos != {stop}:")
            self._emit(level + 3, f"raise Malformed('tag {tagged.tag} does not fill its size')")
        self._emit(level + 1, f"pos = {stop}")

    def _length(self, name: str, level: int, form: str, form_size: int) -> None:
        if self._flexible:
            self._emit(level, f"{name} = data[pos]")
            self._emit(level, f"if {name} < 0x80:")
            self._emit(level + 1, "pos += 1")
            self._emit(level, "else:")
            self._emit(level + 1, f"{name}, pos = uvarint(data, pos)")
            self._emit(level, f"{name} -= 1")
        else:
            self._emit(level, f"{name} = unpack_from('{form}', data, pos)[0]")
            self._emit(level, f"pos += {form_size}")

    def _null_or_refuse(
        self, field: Any, target: str, length: str, level: int, *, may_be_null: bool = True
    ) -> None:
        if may_be_null and field.nullable_for_version_q(self._version):
            self._emit(level, f"elif {length} == -1:")
            self._emit(level + 1, f"{target} = None")
        self._emit(level, "else:")
        self._emit(
            level + 1,
            f"raise Malformed(f'{field.name}: {{{length}}} in {{end - pos}} bytes at {{pos}}')",
        )

    def _least(self, field: Any) -> int:
        """Return the smallest number of bytes that a value of this field can have."""
        kind = field._type_str
        if field.is_struct():
            fields = field.untagged_fields(self._version)
            return max(1, sum(map(self._least, fields)) + self._flexible)
        if field.is_array() or field.is_struct_array():
            return 1 if self._flexible else 4
        if kind in _FIXED:
            return _FIXED[kind][1]
        if kind == "uuid":
            return 16
        return 1 if self._flexible else 2 if kind == "string" else 4

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _emit(self, level: int, line: str) -> None:
        self.lines.append("    " * level + line)
