"""The registry of Kafka request handlers, which are functions of the modules below `requests`:

    @handles(HeartbeatRequest, needs=has_groups)
    async def heartbeat(request: Request[HeartbeatRequest]) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=...)

`load_handlers` imports every module of `requests`, so a new request needs only a new file there. `Registry` contains
the handlers whose needs the broker meets, and ApiVersions reports their requests.

A handler returns the response or an awaitable of the response. A coroutine is run as a task; a future or a `Later` is
awaited without a task.

The right that every request of an API needs (`access.rights.GUARDS`) is checked before its handler runs. `refuse` makes
the response for a caller that lacks this right. The handler itself checks rights that depend on the request's fields.

Requests of one connection begin one after the other. A request may begin before all earlier ones have their responses
only if those earlier requests are `is_ordered`, which means that their effects take place before the handler returns.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from odradek_broker.access.rights import KAFKA_GUARDS, Guard
from odradek_broker.kafka.request import Encoded, NoResponse, Request
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey, Versions, api_name
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message
from odradek_protocol.kafka.request_decoding import (
    all_steps,
    decode_request,
    decode_request_in_steps,
)

Response: TypeAlias = Message | Encoded | NoResponse
HandlerResult: TypeAlias = Response | Awaitable[Response]


class RequestMessage(Protocol):
    """A request class: one of `odradek_protocol.kafka.messages`, or a hand-written one (such as Produce or Fetch)."""

    API_KEY: ClassVar[int]


M = TypeVar("M", bound=RequestMessage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The handler of one API, with the functions that decode its requests.

    The arguments of a decoder are the API version and the body, a writable view of the frame.
    """

    key: ApiKey
    versions: Versions
    # Any, because the type of a table cannot express that a handler takes the type that its `decode` returns. The
    # signature of `handles` checks this.
    handle: Callable[[Request[Any]], HandlerResult]
    decode: Callable[[int, memoryview], object]
    decode_in_steps: Callable[[int, memoryview], Generator[None, None, object]]
    is_ordered: bool
    needs: Callable[[Services], bool]
    while_: Callable[[Services], bool] | None


_HANDLERS: Final[dict[ApiKey, Handler]] = {}


def handles(
    message: type[M],
    *,
    refuse: Callable[[Request[M], ErrorCode], HandlerResult] | None = None,
    decode: Callable[[int, memoryview], M] | None = None,
    decode_in_steps: Callable[[int, memoryview], Generator[None, None, M]] | None = None,
    is_ordered: bool = False,
    needs: Callable[[Services], bool] = lambda _services: True,
    while_: Callable[[Services], bool] | None = None,
) -> Callable[[Callable[[Request[M]], HandlerResult]], Callable[[Request[M]], HandlerResult]]:
    """Register a function as the handler of a request class.

    The broker serves the API only if `needs` returns True at the start, and only while `while_` returns True. `decode`
    (for short requests) and `decode_in_steps` replace the generated decoders. `refuse` must be given for the APIs in
    `KAFKA_GUARDS`, and for no others.
    """
    key = ApiKey(message.API_KEY)
    guard = KAFKA_GUARDS.get(key)
    assert (guard is None) == (refuse is None), f"{key.name}: guard {guard}, refusal {refuse}"

    def register(
        handle: Callable[[Request[M]], HandlerResult],
    ) -> Callable[[Request[M]], HandlerResult]:
        assert key not in _HANDLERS, f"two handlers: {key.name}"
        _HANDLERS[key] = Handler(
            key=key,
            versions=SUPPORTED[key],
            handle=_guarded(handle, guard, refuse) if guard is not None and refuse else handle,
            decode=decode
            or (
                _all_at_once(decode_in_steps)
                if decode_in_steps is not None
                else lambda version, body: decode_request(key, version, body)
            ),
            decode_in_steps=decode_in_steps
            or (lambda version, body: decode_request_in_steps(key, version, body)),
            is_ordered=is_ordered,
            needs=needs,
            while_=while_,
        )
        return handle

    return register


def _guarded(
    handle: Callable[[Request[M]], HandlerResult],
    guard: Guard,
    refuse: Callable[[Request[M], ErrorCode], HandlerResult],
) -> Callable[[Request[M]], HandlerResult]:
    @functools.wraps(handle)
    def handle_if_allowed(request: Request[M]) -> HandlerResult:
        if not request.services.authorizer.is_on:
            return handle(request)
        name = guard.resource_name(request.message)
        if request.allows(guard.operation, guard.resource_type, name):
            return handle(request)
        return refuse(request, guard.error)

    return handle_if_allowed


def _all_at_once(
    decode_in_steps: Callable[[int, memoryview], Generator[None, None, M]],
) -> Callable[[int, memoryview], M]:
    return lambda version, body: all_steps(decode_in_steps(version, body))


def load_handlers() -> dict[ApiKey, Handler]:
    """Import every module of `odradek_broker.kafka.requests`, and return the handlers that they registered."""
    package = importlib.import_module(f"{__package__}.requests")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return _HANDLERS


class Registry:
    """The handlers of all Kafka requests that one broker serves."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._by_key: dict[int, Handler] = {
            int(key): handler
            for key, handler in sorted(load_handlers().items())
            if handler.needs(services)
        }
        services.advertised = self.advertised

    def find(self, key: int, version: int) -> Handler | None:
        """Return the handler of an API; None if the broker does not serve the API in this version."""
        handler = self._by_key.get(key)
        if handler is None or not handler.versions.lowest <= version <= handler.versions.highest:
            return None
        if handler.while_ is not None and not handler.while_(self.services):
            return None
        return handler

    def refusal(self, key: int, version: int) -> str:
        """Return a log text that says why `find` returned None. As in Kafka, the client gets no response."""
        handler = self._by_key.get(key)
        if handler is None or (handler.while_ is not None and not handler.while_(self.services)):
            return f"request {api_name(key)} is not served"
        served = handler.versions
        return (
            f"request {api_name(key)} is served in versions {served.lowest} to {served.highest}, "
            f"not in version {version}"
        )

    def advertised(self) -> list[tuple[int, int, int]]:
        """Return (API key, lowest version, highest version) of each API that is served."""
        return [
            # librdkafka before 2.8 requires Produce version 0 in the list, but never sends this version (KAFKA-18659).
            (key, 0 if key == ApiKey.PRODUCE else handler.versions.lowest, handler.versions.highest)
            for key, handler in self._by_key.items()
            if handler.while_ is None or handler.while_(self.services)
        ]
