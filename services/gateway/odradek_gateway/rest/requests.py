"""The parts of a request: its path parameters, its body, and its caller's access to the cluster.

A route declares its body once, as a `JsonBody` of a msgspec type. By this type the body is decoded and checked (in C)
and described in openapi.json. Errors of a body: 400 not JSON, 408 the body stops arriving, 413 too large, 415 wrong
media type, 422 JSON of another type, 429 too many bodies at once. v2 clients expect error code 422 for JSON of
another type and for an empty body.

A path with an invalid topic name gets 404, like a path with the name of a topic that does not exist. A path with a
partition that is not a number gets 404, too. A negative partition number is refused by the route, like any partition
that does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final, Generic, TypeVar, cast

import msgspec
from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from starlette.requests import ClientDisconnect

from odradek.cluster.metadata_cache import Partition
from odradek.errors import UnknownTopic
from odradek_gateway.auth.caller_limits import RequestShares
from odradek_gateway.auth.callers import ACCESS
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import BAD_PAYLOAD, RestError
from odradek_gateway.rest.media_types import PLAIN, base_type
from odradek_protocol.kafka.api_keys import ITEMS_MAX
from odradek_protocol.topic_names import TOPIC_NAME_PATTERN, topic_name_error

T = TypeVar("T")
Wait = AbstractAsyncContextManager[Any]
SHORT_BODY_BYTES_MAX: Final = 4 << 20
"""The largest body without records in bytes. It is enough for 10,000 partitions of topics with the longest names."""
_NUMBERS_PER_ITEM: Final = 6
_OTHER_ITEMS: Final = 500
RATE_MIN_BYTES_S: Final = 4 << 10
"""The lowest average rate in bytes per second at which a body may arrive if it takes longer than the idle timeout. It
protects against clients that send very slowly to keep requests open.
"""
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1


class JsonBody(Generic[T]):
    """Parses and checks the JSON body of a request. Each route with a body creates a JsonBody, for example `_BODY`. The
    route's handler calls `await _BODY.read(request)`, and the route's `openapi_extra` is `_BODY.openapi`.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        media_types: Sequence[str] = (PLAIN,),
        also_taken: Sequence[str] = (),
        empty: T | None = None,
        is_v2: bool = False,
        has_records: bool = False,
        example: object = None,
    ) -> None:
        """`empty` is the decoded value of an empty body; if it is None, empty bodies are refused.

        `example` is a body that the route accepts. The docs page shows the example to users, because Swagger UI would
        otherwise make one from the schema, with values that the route does not accept.

        `also_taken` are further accepted media types, which openapi.json and error messages do not list. A body with
        records (`has_records`) may have any number of items; other bodies have a limit, because one call decodes all
        their items.
        """
        self._has_records = has_records
        self._decoder = msgspec.json.Decoder(kind)
        self._media_types = media_types
        self._taken = frozenset((*media_types, *also_taken))
        self._empty = empty
        self._wrong_code, self._missing_status = (422, 422) if is_v2 else (BAD_PAYLOAD, 400)
        described: dict[str, object] = {"schema": _without_references(msgspec.json.schema(kind))}
        if example is not None:
            self._decoder.decode(msgspec.json.encode(example))
            described["example"] = example
        self.openapi: Final[dict[str, Any]] = {
            "requestBody": {
                "required": empty is None,
                "content": dict.fromkeys(media_types, described),
            }
        }

    async def read(self, request: Request, *, bytes_max: int = SHORT_BODY_BYTES_MAX) -> T:
        """Read, check and decode the request's body.

        Raises:
            RestError: 400, 408, 413, 415, 422, 429; the docstring of this module explains them.
        """
        self.check_type(request)
        return self.decode(await read_body(request, bytes_max=bytes_max))

    def check_type(self, request: Request) -> None:
        """Raise RestError 415 unless the route accepts the body's media type. An empty body needs no media type.

        A body without a media type is refused, because a web page can make a browser send such a body without a CORS
        preflight.
        """
        name = base_type(request.headers.get("content-type"))
        allowed = ", ".join(sorted(self._media_types))
        if not name and _has_body(request):
            raise RestError(415, 415, f"HTTP 415 Unsupported Media Type: none; use {allowed}")
        if name and name not in self._taken:
            raise RestError(415, 415, f"HTTP 415 Unsupported Media Type: {name}; use {allowed}")

    def decode(self, body: bytes) -> T:
        """Decode a body. Raises RestError 400, 413 or 422."""
        if not body or body.isspace():
            if self._empty is None:
                status = self._missing_status
                raise RestError(status, status, "the body is empty; JSON is expected")
            return self._empty
        if not self._has_records:
            _require_few_items(body)
        return decoded(self._decoder, body, wrong_code=self._wrong_code)


def _require_few_items(body: bytes) -> None:
    """Raise RestError 413 for a body with so many items that decoding it would block the event loop for long.

    The function counts the braces and commas of the body instead of decoding it.
    """
    if (
        body.count(b"{") > ITEMS_MAX + _OTHER_ITEMS
        or body.count(b",") > _NUMBERS_PER_ITEM * ITEMS_MAX
    ):
        raise RestError(413, 413, f"the body has more than {ITEMS_MAX} items")


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    return "transfer-encoding" in request.headers or length.strip() not in ("", "0")


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, *, wrong_code: int = BAD_PAYLOAD) -> T:
    """Decode JSON of the decoder's type.

    Raises RestError 400 if the body is not JSON, and 422 with the error code `wrong_code` for JSON of another type.
    """
    try:
        body.decode()  # msgspec does not check UTF-8 in values that it keeps raw (msgspec.Raw)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RestError(422, wrong_code, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, 400, f"the body is not JSON: {error}") from None


def cluster_of(request: Request) -> ClusterAccess:
    """Return the caller's access to the cluster, or the gateway's own access if callers are not authenticated."""
    cluster = request.scope.get(ACCESS) or request.app.state.cluster
    assert isinstance(cluster, ClusterAccess), "the application has no cluster"
    return cluster


async def describe_partition(
    cluster: ClusterAccess, topic: str, partition: int, *, error_code: int
) -> Partition:
    """Return a partition's description. Raise RestError 404 with the code `error_code` if it does not exist."""
    described = await cluster.admin.describe_topic(topic)
    if not 0 <= partition < len(described.partitions):
        raise RestError(404, error_code, f"topic {topic} has no partition {partition}")
    return described.partitions[partition]


async def chunks_of(
    request: Request, idle_ms_max: int, wait: Callable[[float], Wait] = asyncio.timeout
) -> AsyncIterator[bytes]:
    """Yield the pieces of the body as they arrive. `wait(seconds)` is a context manager that bounds the wait for each
    piece.

    Raises:
        RestError: 408 if nothing arrives for `idle_ms_max`: an incomplete body must not keep a request open for ever.
    """
    stream = aiter(request.stream())
    while True:
        try:
            async with wait(idle_ms_max / 1000):
                chunk = await anext(stream, None)
        except TimeoutError:
            words = f"nothing of the body arrived for {idle_ms_max} ms"
            raise RestError(408, 408, words, ends_connection=True) from None
        if chunk is None:
            return
        yield chunk


async def read_body(request: Request, *, bytes_max: int = SHORT_BODY_BYTES_MAX) -> bytes:
    """Read the whole body, of at most `bytes_max` bytes. Raises the errors that `read_long_body` lists."""
    return bytes(await read_long_body(request, bytes_max=bytes_max))


async def read_long_body(request: Request, *, bytes_max: int = INT32_MAX) -> bytearray:
    """Read the whole body into one growing buffer. Joining all pieces of a 64 MiB body after the last one would
    block the event loop for long.

    Raises:
        RestError: 413 if the body is larger than allowed, by its Content-Length or by the bytes that arrive; 429 if the
        caller's bodies, or all bodies together, are too large; 408 if the body arrives too slowly.
    """
    shares: RequestShares = request.app.state.shares
    settings = cluster_of(request).settings
    limit = min(settings.body_bytes_max, bytes_max)
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    size = 0
    began_s, idle_s = time.monotonic(), settings.body_idle_timeout_ms / 1000
    async for chunk in chunks_of(request, settings.body_idle_timeout_ms):
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        waited_s = time.monotonic() - began_s
        if waited_s > idle_s and size < RATE_MIN_BYTES_S * waited_s:
            words = f"the body arrived too slowly: {size} bytes in {waited_s:.0f} s"
            raise RestError(408, 408, words, ends_connection=True)
        if (refusal := shares.take_body(request.scope, len(chunk))) is not None:
            words = f"{refusal} (request.bodies.bytes.max)"
            raise RestError(429, 42901, words, ends_connection=True)
        body += chunk
    return body


def _too_large(limit: int) -> RestError:
    words = f"the body is larger than {limit} bytes"
    if limit != SHORT_BODY_BYTES_MAX:
        words += " (request.body.bytes.max)"
    return RestError(413, 413, words)


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return msgspec's schema with its references to `$defs` replaced by the definitions, as openapi.json needs it."""
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


@contextlib.asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancel the `async with` block when the client disconnects. The request's body must have been read completely
    before.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        within.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as within:
            watching = asyncio.create_task(watch(), name="watch for a disconnect")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not within.expired():
            raise
        raise ClientDisconnect from None


_whole: Final = re.compile("-?[0-9]{1,10}")


def _allowed_topic_name(name: str) -> str:
    if error := topic_name_error(name):
        raise UnknownTopic(f"topic {name!r} does not exist: {error}")
    return name


def _whole_number(text: str) -> int:
    if not _whole.fullmatch(text) or abs(int(text)) > INT32_MAX:
        raise RestError(404, 404, f"there is no partition {text!r}: a partition is a number")
    return int(text)


async def _cluster(request: Request) -> ClusterAccess:
    # `_cluster` is a coroutine, because FastAPI would run a plain function in a thread.
    return cluster_of(request)


Cluster = Annotated[ClusterAccess, Depends(_cluster)]
TopicName = Annotated[
    str,
    Path(),
    AfterValidator(_allowed_topic_name),
    WithJsonSchema({"type": "string", "pattern": TOPIC_NAME_PATTERN}),
]
PartitionId = Annotated[
    int,
    Path(),
    BeforeValidator(_whole_number),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": INT32_MAX}),
]
BrokerId = Annotated[int, Path(ge=0, le=INT32_MAX)]
GroupName = Annotated[str, Path(min_length=1, max_length=249)]
InstanceName = Annotated[str, Path(min_length=1, max_length=249)]
MemberId = Annotated[str, Path(min_length=1, max_length=1_024)]
ConfigName = Annotated[str, Path(min_length=1, max_length=249)]
