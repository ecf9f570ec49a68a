"""Which handler answers which request. A handler is one file of this package:

    @handles(ApiKey.HEARTBEAT, needs=lambda services: services.groups is not None)
    async def heartbeat(request: Request) -> Message:
        return HeartbeatResponse(error_code=...)

`load_handlers` imports every module of the package, so a new file is all that a new request takes.
`Registry` keeps the handlers whose needs the broker meets: what it has is what ApiVersions tells.

A handler returns the message at once, or an awaitable of it: a coroutine becomes a task, a future
is waited for without one. Requests of one connection are begun one after the other; only while all
unanswered ones before it are `is_ordered` (their effects took place, in order, when the handler
returned) the next one is begun before they are answered.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from odradek_broker.kafka.request import Encoded, NoAnswer, Request
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey, Versions, api_name
from odradek_protocol.kafka.messages import decode_request, decode_request_in_steps

Reply = Any  # the library's response message, Encoded, or NoAnswer
Handle = Callable[[Request], "Reply | Awaitable[Reply]"]
Decode = Callable[[int, memoryview], Any]  # version, message; a writable view of the frame
DecodeInSteps = Callable[[int, memoryview], Generator[None, None, Any]]
H = TypeVar("H", bound=Callable[..., Any])

__all__ = ["Encoded", "Handler", "NoAnswer", "Registry", "Reply", "handles", "load_handlers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """How one request is read and answered."""

    key: ApiKey
    versions: Versions
    handle: Handle
    decode: Decode
    decode_in_steps: DecodeInSteps
    is_ordered: bool
    needs: Callable[[Services], bool]


_HANDLERS: Final[dict[ApiKey, Handler]] = {}


def handles(
    key: ApiKey,
    *,
    decode: Decode | None = None,
    is_ordered: bool = False,
    needs: Callable[[Services], bool] = lambda _services: True,
) -> Callable[[H], H]:
    """Enter a function as the handler of `key`; `decode` replaces the generated codec."""

    def enter(handle: H) -> H:
        assert key not in _HANDLERS or _HANDLERS[key].handle is handle, f"{key.name} is handled"
        _HANDLERS[key] = Handler(
            key=key,
            versions=SUPPORTED[key],
            handle=handle,
            decode=decode or (lambda version, body: decode_request(key, version, body)),
            decode_in_steps=_in_one_step(decode)
            if decode is not None
            else lambda version, body: decode_request_in_steps(key, version, body),
            is_ordered=is_ordered,
            needs=needs,
        )
        return handle

    return enter


def _in_one_step(decode: Decode) -> DecodeInSteps:
    def steps(version: int, body: memoryview) -> Generator[None, None, Any]:
        yield
        return decode(version, body)

    return steps


def load_handlers() -> dict[ApiKey, Handler]:
    """Import every module of `odradek_broker.kafka.requests`, and return the handlers that they registered."""
    package = importlib.import_module(f"{__package__}.requests")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return _HANDLERS


class Registry:
    """The handlers of one broker."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._by_key: dict[int, Handler] = {
            int(key): handler
            for key, handler in sorted(load_handlers().items())
            if handler.needs(services)
        }
        services.advertised = self.advertised

    def find(self, key: int, version: int) -> Handler | None:
        """The handler of a request, None if it is unknown or not in this version."""
        handler = self._by_key.get(key)
        if handler is None or not handler.versions.lowest <= version <= handler.versions.highest:
            return None
        return handler

    def refusal(self, key: int, version: int) -> str:
        """Why `find` found nothing, for the log: the client is told nothing, as in Kafka."""
        handler = self._by_key.get(key)
        if handler is None:
            return f"request {api_name(key)} is not served"
        served = handler.versions
        return (
            f"request {api_name(key)} is served in versions {served.lowest} to {served.highest}, "
            f"not in version {version}"
        )

    def advertised(self) -> list[tuple[int, int, int]]:
        """(key, lowest, highest version) of what works."""
        return [
            # librdkafka before 2.8 wants Produce 0 told, and never sends it (KAFKA-18659).
            (key, 0 if key == ApiKey.PRODUCE else one.versions.lowest, one.versions.highest)
            for key, one in self._by_key.items()
        ]
