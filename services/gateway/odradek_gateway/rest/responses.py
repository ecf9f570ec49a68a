"""JSON responses of any length. A long response is made and sent in pieces, and other requests run after each piece.

To make a list of thousands of partitions takes a tenth of a second, and would block all other requests if it was done
at once. Each piece is sent before the items of the next piece are made, so a slow client costs the memory of one
piece only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from odradek_gateway.rest.media_types import PLAIN

ITEMS_PER_PIECE: Final = 100
"""The number of items that are made and sent in one piece. It takes up to 50 us to make and encode one item."""
_PIECE_BYTES: Final = 256 << 10
encode: Final = msgspec.json.Encoder().encode


def json_list(
    items: Iterable[Any],
    *,
    before: bytes = b"[",
    after: bytes = b"]",
    media_type: str = PLAIN,
    items_at_once: int = ITEMS_PER_PIECE,
) -> Response:
    """Return a response whose body is `before`, the items as JSON separated by commas, and `after`.

    A list of up to `items_at_once` items is sent in one piece with a Content-Length, a longer list in chunks.
    """
    rest = iter(items)
    first = list(islice(rest, items_at_once + 1))
    head = before + _inner(first)
    if len(first) <= items_at_once:
        return Response(head + after, media_type=media_type)
    return StreamingResponse(_pieces(head, rest, after), media_type=media_type)


def json_object(
    fields: dict[str, Any],
    name: str,
    items: Iterable[Any],
    *,
    media_type: str = PLAIN,
    items_at_once: int = ITEMS_PER_PIECE,
) -> Response:
    """Return a response with a JSON object: first `fields`, then a field `name` with the list of `items`."""
    start = encode(fields)[:-1] + (b"," if fields else b"")
    before = start + encode(name) + b":["
    return json_list(
        items, before=before, after=b"]}", media_type=media_type, items_at_once=items_at_once
    )


async def _pieces(head: bytes, rest: Iterator[Any], after: bytes) -> AsyncIterator[bytes]:
    yield head
    while items := list(islice(rest, ITEMS_PER_PIECE)):
        await asyncio.sleep(0)
        yield b"," + _inner(items)
    yield after


def _inner(items: Sequence[Any]) -> bytes:
    return encode(items)[1:-1]


class ReadyPieces(Response):
    """A response with a complete body that consists of `pieces`. They are sent one by one, as fast as the client reads,
    and other requests run after each piece.
    """

    def __init__(
        self, pieces: Sequence[bytes], *, status_code: int = 200, media_type: str = PLAIN
    ) -> None:
        super().__init__(None, status_code, media_type=media_type)
        self._pieces = pieces
        self.headers["content-length"] = str(sum(map(len, pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and the body."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        for piece in self._pieces:
            for start in range(0, len(piece), _PIECE_BYTES):
                part = piece[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
