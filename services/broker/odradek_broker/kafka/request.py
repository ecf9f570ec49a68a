"""One request on its way through a handler: the message, who sent it, and the broker that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from odradek_broker.access.sasl import SaslExchange
from odradek_broker.kafka.services import Services
from odradek_protocol.access import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    ResourceType,
)
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.response_encoding import encode_steps
from odradek_runtime.budget.loop_turns import Pace
from odradek_runtime.budget.refusals import shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS

_log = event_log("odradek_broker.audit")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ClientSession:
    """What the broker knows of the other end of a connection.

    `sasl` is set on listeners that demand it; `principal` is ANONYMOUS until it has succeeded.
    `reauthenticate_at_ms` (monotonic) is when a session's authentication runs out; None: never.
    """

    listener: str
    host: str
    is_encrypted: bool = False
    principal: str = ANONYMOUS
    sasl: SaslExchange | None = None
    reauthenticate_at_ms: int | None = None
    takes_raw_tokens: bool = False  # after SaslHandshake 0: frames without a header
    client_software: str = ""

    @property
    def is_authenticated(self) -> bool:
        """Whether anything but the login itself may be asked."""
        return self.sasl is None or self.sasl.is_complete

    @property
    def owner(self) -> str:
        """Who pays for what this client takes (`odradek_runtime.budget.shares`)."""
        return owner_of(self.principal, self.host)

    def logged_in(self, reauth_ms_max: int) -> int:
        """The exchange is complete: how long the login lasts, in ms; 0: as long as the connection.

        A login by token ends with the token, any login after `reauth_ms_max` if that is not 0.
        """
        assert self.sasl is not None, self
        self.principal = f"User:{self.sasl.user}"
        bounds = (reauth_ms_max, self.sasl.lifetime_ms)
        lifetime_ms = min((one for one in bounds if one), default=0)
        self.reauthenticate_at_ms = monotonic_ms() + lifetime_ms if lifetime_ms else None
        return lifetime_ms

    def must_log_in_again(self, now_ms: int) -> bool:
        """Whether the login has run out (KIP-368)."""
        return self.reauthenticate_at_ms is not None and now_ms > self.reauthenticate_at_ms


@dataclass(slots=True, kw_only=True)
class Request:
    """`message` is decoded; `throttle_ms` is what quotas demand, told in the answer and then obeyed
    by the connection, which reads nothing for so long."""

    key: ApiKey
    version: int
    client_id: str | None
    message: Any  # a class that the library made at run time, or our own of Produce and Fetch
    session: ClientSession
    services: Services
    throttle_ms: int = 0
    closes_connection: bool = False  # after the answer
    _pace: Pace | None = None

    @property
    def pace(self) -> Pace:
        """How this request gives way to others when it takes long; begins at its first use."""
        if self._pace is None:
            self._pace = self.services.budget.turns.pace(self.session.owner)
        return self._pace

    def in_turns(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, of which there may be thousands, with turns for everybody else between them."""
        return self.pace.items(items)

    async def encoded(self, response: Any) -> bytes:
        """The response's bytes, encoded in turns; for what is kept as bytes."""
        parts: list[bytearray] = []
        await self.pace.run(encode_steps(response, self.version, parts))
        return b"".join(parts)

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether who asks may do this; that it may not is written into the audit log."""
        if self.sees(operation, resource_type, name):
            return True
        self._audit(operation, resource_type, name)
        return False

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """The same without the audit: for what is left out of an answer, not refused."""
        authorizer = self.services.authorizer
        if not authorizer.is_on:
            return True
        session = self.session
        return authorizer.allows(session.principal, session.host, operation, resource_type, name)

    def sees_cluster(self, operation: Operation) -> bool:
        """Likewise, of the cluster."""
        return self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def _audit(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """One line for each kind of refusal and owner, at a rate; the next line tells how many had none."""
        session = self.session
        entry = (self.key, operation, resource_type, name)
        unlogged = self.services.budget.refusals.admit(session.owner, entry, monotonic_ms() / 1000)
        if unlogged is None:
            return
        more = {"not_logged_before": unlogged} if unlogged else {}
        _log.warning(
            "Denied",
            principal=session.principal,
            host=session.host,
            request=self.key.name,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=shortened(name),
            **more,
        )

    def allows_topic(self, operation: Operation, topic: str) -> bool:
        """Likewise, of a topic."""
        return self.allows(operation, ResourceType.TOPIC, topic)

    def allows_group(self, operation: Operation, group: str) -> bool:
        """Likewise, of a group."""
        return self.allows(operation, ResourceType.GROUP, group)

    def allows_cluster(self, operation: Operation) -> bool:
        """Likewise, of the cluster."""
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any_topic(self, operation: Operation) -> bool:
        """Whether there is a topic that it may do this to."""
        authorizer = self.services.authorizer
        session = self.session
        return not authorizer.is_on or authorizer.allows_any(
            session.principal, session.host, operation, ResourceType.TOPIC
        )

    def operations(self, resource_type: ResourceType, name: str) -> set[int]:
        """All that who asks may do to a resource (KIP-430)."""
        return {
            int(one) for one in OPERATIONS_OF[resource_type] if self.sees(one, resource_type, name)
        }

    def operation_bits(self, resource_type: ResourceType, name: str) -> int:
        """The same as bits, for messages of our own schemas."""
        return sum(1 << one for one in self.operations(resource_type, name))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message that is encoded already: buffers to be written one after the other."""

    buffers: tuple[Sized, ...]  # bytes, and slices of files
    size_bytes: int


class NoAnswer:
    """In place of an answer: the client expects none (acks=0)."""


NO_ANSWER = NoAnswer()


class CloseConnection(Exception):
    """The request must not be answered, and whoever sent it not be heard further."""
