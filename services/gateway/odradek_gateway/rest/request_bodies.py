"""Bodies of requests: read with a bound, of the right media type, decoded into a type.

A route names the type that it takes once, as a `JsonBody`: the same type decodes and checks (msgspec, in C) and stands
in openapi.json. 408 half a body, 413 too large, 415 wrong media type, 400 no JSON, 422 not of the type, 429 too many
bodies at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from fastapi import Request

from odradek_gateway.auth.caller import ACCESS
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.media_types import PLAIN, base_type

T = TypeVar("T")
Wait = AbstractAsyncContextManager[Any]
_HELD_BYTES: Final = "odradek.body_bytes"
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1


class JsonBody(Generic[T]):
    """What a route takes: `await BODY.read(request)`, and `openapi_extra=BODY.openapi`."""

    def __init__(
        self, kind: type[T], *, media_types: Sequence[str] = (PLAIN,), empty: T | None = None
    ) -> None:
        """`empty` stands for a body of no bytes, which is refused otherwise."""
        self._decoder = msgspec.json.Decoder(kind)
        self._media_types = frozenset(media_types)
        self._empty = empty
        schema = _without_references(msgspec.json.schema(kind))
        self.openapi: Final[dict[str, Any]] = {
            "requestBody": {
                "required": empty is None,
                "content": {name: {"schema": schema} for name in media_types},
            }
        }

    async def read(self, request: Request) -> T:
        """The body of this request.

        Raises:
            RestError: 400, 413, 415, 422.
        """
        self.check_type(request)
        return self.decode(await read_body(request))

    def check_type(self, request: Request) -> None:
        """RestError 415; no Content-Type at all counts as JSON."""
        name = base_type(request.headers.get("content-type"))
        if name and name not in self._media_types:
            allowed = ", ".join(sorted(self._media_types))
            raise RestError(415, 415, f"HTTP 415 Unsupported Media Type: {name}; use {allowed}")

    def decode(self, body: bytes) -> T:
        """Of bytes that are here already; RestError 400, 422."""
        if not body or body.isspace():
            if self._empty is None:
                raise RestError(400, 400, "the body is empty; JSON is expected")
            return self._empty
        return decoded(self._decoder, body)


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """JSON of the decoder's type; RestError 400 for what is no JSON, 422 for what is of another type."""
    try:
        body.decode()  # what is kept as it came (msgspec.Raw) is not looked at for this
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RestError(422, BAD_PAYLOAD, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, 400, f"the body is not JSON: {error}") from None


def cluster_of(request: Request) -> ClusterAccess:
    """The access to the cluster as the caller, or as the gateway where nobody is asked."""
    cluster = request.scope.get(ACCESS) or request.app.state.cluster
    assert isinstance(cluster, ClusterAccess), "the application has no cluster"
    return cluster


async def chunks_of(
    request: Request, idle_ms_max: int, wait: Callable[[float], Wait] = asyncio.timeout
) -> AsyncIterator[bytes]:
    """The body as it comes; `wait` bounds, in s, how long the next piece is waited for.

    Raises:
        RestError: 408, nothing came for so long; who sends half a body keeps no request open for ever.
    """
    stream = aiter(request.stream())
    while True:
        try:
            async with wait(idle_ms_max / 1000):
                chunk = await anext(stream, None)
        except TimeoutError:
            words = f"nothing of the body came for {idle_ms_max} ms"
            raise RestError(408, 408, words, ends_connection=True) from None
        if chunk is None:
            return
        yield chunk


class BodyRoom:
    """Counts the bytes of bodies in memory, of all requests together; a request has what it took to its end."""

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max

    def take(self, scope: MutableMapping[str, Any], size_bytes: int) -> None:
        """For the request of this scope. Raises RestError 429."""
        if self.held_bytes + size_bytes > self._bytes_max:
            words = f"bodies of {self._bytes_max} bytes are being read (request.bodies.bytes.max)"
            raise RestError(429, 42901, words, ends_connection=True)
        self.held_bytes += size_bytes
        scope[_HELD_BYTES] = scope.get(_HELD_BYTES, 0) + size_bytes

    def give_back(self, scope: MutableMapping[str, Any]) -> None:
        """The request of this scope is over."""
        self.held_bytes -= scope.pop(_HELD_BYTES, 0)


async def read_body(request: Request) -> bytes:
    """The whole body; 413 as soon as it is too large, whatever its length field says, 429 if all bodies are."""
    room: BodyRoom = request.app.state.body_room
    limit = cluster_of(request).settings.body_bytes_max
    told = request.headers.get("content-length")
    if told is not None and told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks_of(request, cluster_of(request).settings.body_idle_timeout_ms):
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        room.take(request.scope, len(chunk))
        pieces.append(chunk)
    return b"".join(pieces)


def _too_large(limit: int) -> RestError:
    words = f"the body is larger than {limit} bytes (request.body.bytes.max)"
    return RestError(413, 413, words)


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """msgspec's schema with what `$defs` has put where it is referred to: openapi.json keeps its own."""
    definitions = schema.pop("$defs", {})

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            name = str(node["$ref"]).removeprefix("#/$defs/")
            return resolved(definitions[name])
        return {key: resolved(value) for key, value in node.items()}

    return cast("dict[str, Any]", resolved(schema))
