"""Cuts a stream of concatenated JSON objects, with any white space between them, into single objects.

Only braces and strings are looked at; each piece is parsed afterwards by a real parser. Bytes arrive in any pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from odradek_gateway.rest.errors import RestError

_OUTSIDE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'["\\]')
_BLANK = b" \t\r\n"


class JsonObjects:
    """Feed bytes, get whole objects; an object above `bytes_max` is refused with 413."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._position = 0  # looked at so far
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Whole objects that these bytes complete.

        Raises:
            RestError: 400 for bytes that begin no object, 413 for one that is too large.
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
                    raise RestError(400, 400, "records must be JSON objects, one after the other")
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
        """The stream ended; 400 if it did so within an object."""
        if self._depth or self._buffer.strip():
            raise RestError(400, 400, "the stream of records ends within a record")

    def _scan(self) -> int | None:
        """Go on to the end of the present object; None if it is not there yet."""
        buffer, position = self._buffer, self._position
        while True:
            match = (_INSIDE if self._in_string else _OUTSIDE).search(buffer, position)
            if match is None:
                self._position = len(buffer)
                return None
            byte = buffer[match.start()]
            position = match.end()
            if self._in_string:
                if byte == ord("\\"):
                    if position >= len(buffer):
                        self._position = match.start()
                        return None
                    position += 1
                else:
                    self._in_string = False
            elif byte == ord('"'):
                self._in_string = True
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    self._depth = 0
                    self._position = position
                    return position
