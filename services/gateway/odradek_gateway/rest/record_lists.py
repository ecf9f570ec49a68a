"""Decodes long bodies of v2 produce requests in pieces, and lets other requests run after each piece.

To decode 64 MiB of JSON in one call would block the event loop for a third of a second. So a long body is cut at the
ends of records, which a scan for braces and strings finds. The bytes between two cuts are decoded as an array. A wrong
cut is always noticed, because each piece must be valid JSON by itself. The body without its records is decoded in one
call, like a short body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
from fastapi import Request

from odradek_gateway.errors import RestError
from odradek_gateway.rest.requests import JsonBody, cluster_of, decoded, read_long_body

R = TypeVar("R")
PIECE_BYTES: Final = 256 << 10
_REST_BYTES_MAX: Final = 1 << 20
_TOKENS_PER_TURN: Final = 2_000
_BYTES_PER_TURN: Final = 1 << 20
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
_RECORDS: Final = re.compile(rb'"records"[ \t\r\n]{0,1000}:[ \t\r\n]{0,1000}\[')
_BLANKS: Final = b" \t\r\n"
_INDEX: Final = re.compile(r"`\$\[(\d+)\]")
_WRONG: Final = 422


class RecordList(Generic[R]):
    """Reads the records of a v2 produce request: `await LIST.read(request)`."""

    def __init__(
        self, body: JsonBody[Any], record: type[R], rest: type[msgspec.Struct], *, records_max: int
    ) -> None:
        """`body` decodes a short body as a whole, `record` is the type of one record in a long body, and `rest` is the
        type of a long body without its records.
        """
        self._body = body
        self._decoder = msgspec.json.Decoder(list[record])  # type: ignore[valid-type]
        self._rest_decoder = msgspec.json.Decoder(rest)
        self._records_max = records_max

    async def read(self, request: Request) -> list[R]:
        """Read, check and decode the records of the request's body.

        Raises:
            RestError: 400, 408, 413, 415, 422, 429; see `requests.read_long_body` and `requests.JsonBody`.
        """
        self._body.check_type(request)
        body = await read_long_body(request)
        settings = cluster_of(request).settings
        return await self.decode(body, record_bytes_max=settings.record_bytes_max)

    async def decode(self, body: bytearray, *, record_bytes_max: int) -> list[R]:
        """Decode a body. A body above PIECE_BYTES is decoded in pieces. Raises RestError 400, 413 or 422."""
        records: list[R] = []
        if len(body) <= PIECE_BYTES:
            records = self._body.decode(bytes(body)).records
            return records
        # Positions in `body`: where the array begins, where the next piece begins, and where the last record ends.
        begin = start = end = -1
        for place in cuts(body, record_bytes_max):
            if place is None:
                await asyncio.sleep(0)
            elif begin < 0:
                begin = start = place
            else:
                end = place
                if end - start >= PIECE_BYTES:
                    self._add(records, body[start:end], is_first=start == begin)
                    start = end
                    await asyncio.sleep(0)
        if begin < 0:
            raise RestError(422, _WRONG, "Object missing required field `records`")
        if body[end : end + 1] != b"]":
            raise RestError(400, 400, "the body is not JSON: it ends within the array `records`")
        self._add(records, body[start:end], is_first=start == begin)
        await asyncio.sleep(0)
        if len(body) - (end - begin) > _REST_BYTES_MAX:
            words = f"the body without its records is larger than {_REST_BYTES_MAX} bytes"
            raise RestError(413, 413, words)
        rest: Any = decoded(self._rest_decoder, bytes(body[:begin] + body[end:]), wrong_code=_WRONG)
        if rest.records:
            raise RestError(400, 400, "the body has the field `records` twice")
        if not records:
            raise RestError(422, _WRONG, "Expected `array` of length >= 1 - at `$.records`")
        return records

    def _add(self, records: list[R], piece: bytearray, *, is_first: bool) -> None:
        """Decode one piece of the array `records`, and add its records to `records`.

        Every piece except the first begins with a comma, or contains no record.
        """
        if not is_first:
            piece = piece.lstrip(_BLANKS)
            if not piece:
                return
            if piece[:1] != b",":
                raise RestError(
                    400, 400, f"the body is not JSON: there is no comma after record {len(records)}"
                )
            del piece[:1]
        offset = len(records)
        try:
            more = decoded(self._decoder, bytes(b"[" + piece + b"]"), wrong_code=_WRONG)
        except RestError as error:
            words = _INDEX.sub(lambda at: f"`$.records[{offset + int(at[1])}]", error.message)
            raise RestError(error.status, error.error_code, words) from None
        if not more and not is_first:
            raise RestError(
                400,
                400,
                f"the body is not JSON: there is no record after the comma that follows record {offset}",
            )
        records += more
        if len(records) > self._records_max:
            words = f"Expected `array` of length <= {self._records_max} - at `$.records`"
            raise RestError(422, _WRONG, words)


def cuts(body: bytearray, record_bytes_max: int) -> Iterator[int | None]:
    """Yield the positions where the array `records` begins, where each of its objects ends, and where the array ends.

    The generator also yields None from time to time; the caller then lets other tasks run. If the body is not valid
    JSON, the last positions may be missing.

    Raises:
        RestError: 413 if a string is longer than a record may be.
    """
    depth = position = turned_at = tokens = 0
    is_within = False
    while position < len(body):
        tokens += 1
        if tokens % _TOKENS_PER_TURN == 0 or position - turned_at >= _BYTES_PER_TURN:
            turned_at = position
            yield None
        token = _TOKEN.search(body, position, position + record_bytes_max)
        if token is None:
            position += record_bytes_max
            continue
        start, end = token.span()
        if body[start] == ord('"'):
            if end - start == 1:  # the string does not end in this part of the body
                if start == position and len(body) - start > record_bytes_max:
                    raise RestError(413, 413, f"a record is larger than {record_bytes_max} bytes")
                if len(body) - start <= record_bytes_max:
                    return
                end = start
            elif depth == 1 and not is_within and (key := _RECORDS.match(body, start)) is not None:
                is_within, depth, end = True, 2, key.end()
                yield end
        elif body[start] in b"{[":
            depth += 1
        else:
            depth -= 1
            if is_within and depth == 2:
                yield end
            elif is_within and depth < 2:
                yield start
                return
        position = end
