"""`Request`, the argument of a handler: the decoded message, the client that sent it, and the broker's services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from odradek_broker.access.sasl import SaslExchange
from odradek_broker.kafka.services import Services
from odradek_broker.log.storage import FileSlice
from odradek_protocol.access import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType
from odradek_protocol.identity import TopicId
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import Message
from odradek_protocol.kafka.response_encoding import encode_steps
from odradek_protocol.metadata.image import TopicState
from odradek_protocol.primitives import ByteBuffer
from odradek_runtime.budget.loop_turns import Pace
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS

_log = event_log("odradek_broker.audit")
ResponseBuffer: TypeAlias = ByteBuffer | FileSlice
T = TypeVar("T")
M_co = TypeVar("M_co", covariant=True)
AT_ONCE_MAX: Final = 8
"""A list of at most this many items is handled without a break; longer lists let other requests run in between."""


@dataclass(slots=True, kw_only=True)
class ClientSession:
    """The state of a client's connection: its login, its address and its software.

    `sasl` is None on listeners without SASL. `principal` is ANONYMOUS until the login has succeeded. The login expires
    at `reauthenticate_at_ms` on the monotonic clock; None means never.
    """

    listener: str
    host: str
    # Connections of this broker process are numbered in rising order; see `coordination.connection_order`.
    connection_number: int = 0
    is_encrypted: bool = False
    principal: str = ANONYMOUS
    sasl: SaslExchange | None = None
    reauthenticate_at_ms: int | None = None
    # True after SaslHandshake version 0: the client sends its tokens in frames without a header.
    takes_raw_tokens: bool = False
    client_software: str = ""

    @property
    def is_authenticated(self) -> bool:
        """Whether the client may send all requests: it has logged in, or the listener has no login."""
        return self.sasl is None or self.sasl.is_complete

    @property
    def owner(self) -> str:
        """The owner whose share this client's memory and time count against (`odradek_runtime.budget.shares`)."""
        return owner_of(self.principal, self.host)

    def logged_in(self, reauth_ms_max: int) -> int:
        """Set the principal of a completed login, and return how long the login lasts, in ms.

        A login by token ends when the token expires. Any login ends after `reauth_ms_max`, unless that is 0. The result
        is 0 if the login does not expire.
        """
        assert self.sasl is not None, self
        self.principal = f"User:{self.sasl.user}"
        bounds = (reauth_ms_max, self.sasl.lifetime_ms)
        lifetime_ms = min((bound for bound in bounds if bound), default=0)
        self.reauthenticate_at_ms = monotonic_ms() + lifetime_ms if lifetime_ms else None
        return lifetime_ms

    def must_log_in_again(self, now_ms: int) -> bool:
        """Whether the login has expired (KIP-368)."""
        return self.reauthenticate_at_ms is not None and now_ms > self.reauthenticate_at_ms


class _AtOnce(Generic[T]):
    """An asynchronous iterator that never waits. An async generator costs more, because the event loop tracks it."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> _AtOnce[T]:
        return self

    async def __anext__(self) -> T:
        for item in self._items:
            return item
        raise StopAsyncIteration


class Request(Struct, Generic[M_co], kw_only=True, gc=False):
    """A Kafka request with its decoded message, of type `M_co`.

    `throttle_ms` is the delay that quotas require. The response reports it, and the connection begins no request for
    that time.
    """

    key: ApiKey
    version: int
    client_id: str | None
    message: M_co
    session: ClientSession
    services: Services
    throttle_ms: int = 0
    closes_connection: bool = False  # whether to close the connection after the response
    _pace: Pace | None = None

    @property
    def pace(self) -> Pace:
        """The object with which the handler of a long request lets other requests run in between. It is created at its
        first use.
        """
        if self._pace is None:
            self._pace = self.services.budget.turns.pace(self.session.owner)
        return self._pace

    def in_turns(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate over items, of which there may be thousands, and let other requests run between them.

        A list of at most `AT_ONCE_MAX` items is iterated without a pace, because a pace would also count the time that
        the request waits for a coordinator.
        """
        if isinstance(items, list) and len(items) <= AT_ONCE_MAX:
            return _AtOnce(items)
        return self.pace.items(items)

    async def encoded(self, response: Message) -> bytes:
        """Encode a response in steps, and let other requests run in between. Handlers that cache bytes call this."""
        parts: list[bytearray] = []
        await self.pace.run(encode_steps(response, self.version, parts))
        return b"".join(parts)

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the caller may do the operation on the resource. A refusal is written to the audit log."""
        if self.sees(operation, resource_type, name):
            return True
        self._audit(operation, resource_type, name)
        return False

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the caller may do the operation on the resource. A refusal is not written to the audit log, so
        this method is for resources that a response merely omits.
        """
        authorizer = self.services.authorizer
        if not authorizer.is_on:
            return True
        session = self.session
        return authorizer.allows(session.principal, session.host, operation, resource_type, name)

    def sees_cluster(self, operation: Operation) -> bool:
        """Return `sees` for the cluster resource."""
        return self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def _audit(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Write a refusal to the audit log, at a limited rate for each client and kind of refusal. A later entry
        reports how many refusals were not logged.
        """
        session = self.session
        entry = (self.key, operation, resource_type, name)
        unlogged = self.services.budget.refusals.admit(session.owner, entry, monotonic_ms() / 1000)
        if unlogged is None:
            return
        more = {"not_logged_before": unlogged} if unlogged else {}
        _log.warning(
            "Denied a request",
            principal=session.principal,
            host=session.host,
            request=self.key.name,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=shortened(name),
            **more,
        )

    def allows_topic(self, operation: Operation, topic: str) -> bool:
        """Return `allows` for a topic."""
        return self.allows(operation, ResourceType.TOPIC, topic)

    def allows_group(self, operation: Operation, group: str) -> bool:
        """Return `allows` for a group."""
        return self.allows(operation, ResourceType.GROUP, group)

    def allows_cluster(self, operation: Operation) -> bool:
        """Return `allows` for the cluster resource."""
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any_topic(self, operation: Operation) -> bool:
        """Return whether the caller may do the operation on at least one topic."""
        authorizer = self.services.authorizer
        session = self.session
        return not authorizer.is_on or authorizer.allows_any(
            session.principal, session.host, operation, ResourceType.TOPIC
        )

    def operations(self, resource_type: ResourceType, name: str) -> set[int]:
        """Return every operation that the caller may do on a resource (KIP-430)."""
        return {
            int(operation)
            for operation in OPERATIONS_OF[resource_type]
            if self.sees(operation, resource_type, name)
        }

    def operation_bits(self, resource_type: ResourceType, name: str) -> int:
        """Return `operations` as the bit field (an int32) that responses contain."""
        return sum(1 << operation for operation in self.operations(resource_type, name))


AnyRequest: TypeAlias = Request[object]
"""The type of a request in functions that do not read its message."""


class Encoded(Struct, frozen=True, gc=False):
    """A response that is already encoded, as buffers to write one after the other."""

    buffers: tuple[ResponseBuffer, ...]
    size_bytes: int


def encoded(body: ByteBuffer) -> Encoded:
    """Return a response that consists of this one encoded buffer."""
    return Encoded((body,), len(body))


def at_once(response: asyncio.Future[T]) -> T | asyncio.Future[T]:
    """Return the result of the future if it is already done, otherwise the future."""
    return response.result() if response.done() else response


class NoResponse:
    """Returned instead of a response if the client expects none (acks=0)."""


NO_RESPONSE = NoResponse()


class CloseConnection(Exception):
    """The connection must be closed without a response to the request. The text is logged as the reason."""


def find_topic(
    request: AnyRequest, name: str | None, topic_id: bytes | None, operation: Operation
) -> TopicState | ErrorCode:
    """Return the topic that a request identifies by name or, if `name` is None, by id. Return the error code if there
    is no such topic or the caller lacks the right.

    For a topic that the caller may not describe, a lookup by id gives the same error as for an unknown id, so that the
    response does not reveal whether the topic exists.
    """
    image, is_guarded = request.services.image, request.services.authorizer.is_on
    if name is not None:
        if is_guarded and not request.allows_topic(operation, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        named = image.topic(name)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named is None else named
    topic = image.topics.get(TopicId(topic_id or b""))
    if topic is None or not request.allows_topic(Operation.DESCRIBE, topic.name):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not request.allows_topic(operation, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic
