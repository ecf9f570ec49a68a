"""Who calls over gRPC.

Who he is, the first that fits:

  1. `odradek-on-behalf-of`: the principal that a gateway speaks for. Believed only of a peer whose
     certificate's principal stands in `delegation.principals`; then the rights of the principal
     that is named count, and the gateway's own not at all. Of anybody else the call is refused, and
     so is a call for a super user: a gateway that is taken over must not become the administrator.
  2. `authorization: Bearer SESSION`: the user of a login (`AuthService.Authenticate`).
  3. The subject of the certificate, as on Kafka's listeners.
  4. User:ANONYMOUS, which a listener that wants a login (SASL_...) refuses.

Every refusal is a line in the audit log: the same once a minute, each owner's at a rate, none of any length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.access.grpc_rights import Need
from odradek_broker.access.grpc_sessions import GrpcSession, GrpcSessions
from odradek_protocol.access import Operation, ResourceType
from odradek_runtime.budget.loop_turns import LoopTurns, Pace
from odradek_runtime.budget.refusals import RefusalLines, shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS, principal_of_certificate

_audit = event_log("odradek_broker.audit")
CLIENT_ID: Final = "odradek-client-id"
"""Metadata by which a client names itself, for quotas."""
ON_BEHALF_OF: Final = "odradek-on-behalf-of"
ON_BEHALF_OF_HOST: Final = "odradek-on-behalf-of-host"
SESSION: Final = "authorization"
_BEARER: Final = "bearer "
_PRINCIPAL_CHARACTERS_MAX: Final = 1024
_OTHERS: Final = LoopTurns()  # for calls of other brokers
_AT_ONCE: Final = 20
# Any: what servicers use of a context does not depend on the messages of its method.
ServerContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]
# Any: the stubs describe the handlers of a synchronous server, whose methods return what ours are awaited for.
MethodHandler: TypeAlias = Any
T = TypeVar("T")
R = TypeVar("R")


class Refused(Exception):
    """The call ends with this status; `kind` is the audit's word for it."""

    def __init__(self, code: grpc.StatusCode, details: str, *, kind: str, principal: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.kind = kind
        self.principal = principal


class Caller:
    """Who made one call, and on which listener."""

    __slots__ = (
        "_authorizer",
        "_refusals",
        "client_id",
        "host",
        "listener",
        "pace",
        "principal",
        "session",
        "via",
    )

    def __init__(
        self,
        authorizer: Authorizer,
        *,
        principal: str,
        host: str,
        client_id: str = "",
        listener: str = "GRPC",
        session: GrpcSession | None = None,
        via: str = "",
        refusals: RefusalLines | None = None,
    ) -> None:
        """`via` is the gateway that speaks for the principal; `pace` that of the call's work on the loop."""
        self._refusals = refusals or RefusalLines()
        self.pace: Pace | None = None
        self._authorizer = authorizer
        self.principal = principal
        self.host = host
        self.client_id = client_id
        self.listener = listener
        self.session = session
        self.via = via

    @property
    def owner(self) -> str:
        """Who pays for what this caller takes (`odradek_runtime.budget.shares`)."""
        return owner_of(self.principal, self.host)

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether he may do this to a topic."""
        return not self._authorizer.is_on or self._authorizer.allows(
            self.principal, self.host, operation, ResourceType.TOPIC, topic
        )

    def has(self, need: Need) -> bool:
        """Whether he has one of the rights that would do."""
        return not self._authorizer.is_on or any(
            self._authorizer.allows_any(self.principal, self.host, operation, kind)
            if name is None
            else self._authorizer.allows(self.principal, self.host, operation, kind, name)
            for operation, kind, name in need
        )

    def denied(self, request: str, need: Need) -> str:
        """Write the refusal into the audit log; what to tell the caller."""
        wanted = " or ".join(
            f"{operation.name} on {kind.name} {shortened(name or '(any)')}"
            for operation, kind, name in need
        )
        fields = {"request": request, "needs": wanted, "via": self.via}
        log_refusal(self._refusals, "Denied", self.principal, self.host, **fields)
        return f"{self.principal} needs {wanted or 'a right that nobody has'}"

    def denied_topic(
        self, request: str, operation: Operation, topic: str, given_name: str | None = None
    ) -> str:
        """Like `denied`. `given_name` is what the caller called the topic, which may be by its id alone.

        The response has no other name: an id must not buy the name of a topic that the caller may not see.
        """
        sentence = self.denied(request, [(operation, ResourceType.TOPIC, topic)])
        if given_name is None or given_name == topic:
            return sentence
        return f"{self.principal} needs {operation.name} on TOPIC {given_name}".rstrip()


_current: ContextVar[Caller] = ContextVar("odradek_grpc_caller")


def serve_as(caller: Caller) -> None:
    """This task serves his call."""
    _current.set(caller)


def current_caller() -> Caller:
    """Who made the call that this task serves."""
    return _current.get()


def client_caller() -> Caller | None:
    """Likewise; None for a call of another broker, on the listener where only brokers come in."""
    return _current.get(None)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items of a request one after the other, with turns for others where they are due."""
    caller = client_caller()
    pace = None if caller is None else caller.pace
    async for item in (pace or _OTHERS.pace("brokers")).items(items):
        yield item


async def answers_in_turns(items: Sequence[T], answer: Callable[[T], Awaitable[R]]) -> list[R]:
    """Each item's answer, with turns for others; some items at a time wait for theirs together."""
    answers: list[R] = []
    async for start in in_turns(range(0, len(items), _AT_ONCE)):
        answers += await asyncio.gather(*map(answer, items[start : start + _AT_ONCE]))
    return answers


class Callers:
    """Finds out who calls on one listener."""

    def __init__(
        self,
        authorizer: Authorizer,
        sessions: GrpcSessions,
        *,
        listener: str,
        wants_login: bool = False,
        delegates: tuple[str, ...] = (),
        refusals: RefusalLines | None = None,
    ) -> None:
        self.authorizer = authorizer
        self.refusals = refusals or RefusalLines()
        self._sessions = sessions
        self._listener = listener
        self._wants_login = wants_login
        self._delegates = frozenset(delegates)

    def identify(self, context: ServerContext) -> Caller:
        """Raises Refused for somebody who is not who he says, or says nothing where he must."""
        found: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if key in (CLIENT_ID, ON_BEHALF_OF, ON_BEHALF_OF_HOST, SESSION):
                if key in found and key != CLIENT_ID:
                    raise _unauthenticated(f"two {key} headers")
                found[key] = value if isinstance(value, str) else value.decode(errors="replace")
        host = host_of(context.peer())
        pems: list[bytes] = list(context.auth_context().get("x509_pem_cert", ()))
        principal = principal_of_certificate(pems[0]) if pems else ANONYMOUS
        session: GrpcSession | None = None
        via = ""
        if ON_BEHALF_OF in found or ON_BEHALF_OF_HOST in found:
            via, principal = principal, self._named(principal, found.get(ON_BEHALF_OF, ""))
            host = found.get(ON_BEHALF_OF_HOST) or host
        elif SESSION in found:
            session = self._session(found[SESSION])
            principal = session.principal
        elif self._wants_login:
            raise _unauthenticated("log in first (AuthService.Authenticate)")
        return Caller(
            self.authorizer,
            principal=principal,
            host=host,
            client_id=found.get(CLIENT_ID, ""),
            listener=self._listener,
            session=session,
            via=via,
            refusals=self.refusals,
        )

    def may_be_heard(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
        """Whether headers alone leave room for somebody who may call at all."""
        if not self._wants_login:
            return True
        told = [str(value) for key, value in metadata or () if key == SESSION]
        try:
            return len(told) == 1 and self._session(told[0]) is not None
        except Refused:
            return False

    def _named(self, peer: str, quoted: str) -> str:
        if peer == ANONYMOUS or peer not in self._delegates:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{peer} may not speak for others: it is not in delegation.principals",
                kind="Delegation refused",
                principal=peer,
            )
        name = unquote(quoted)
        if not name.startswith("User:") or not 5 < len(name) <= _PRINCIPAL_CHARACTERS_MAX:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{ON_BEHALF_OF} names no principal, as User:alice",
                kind="Delegation refused",
                principal=peer,
            )
        if self.authorizer.is_super_user(name):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{peer} may not speak for {name}, which is in super.users: super users connect to"
                " brokers directly; through a gateway use a principal that has its rights by ACLs",
                kind="Delegation refused",
                principal=peer,
            )
        return name

    def _session(self, header: str) -> GrpcSession:
        if header[: len(_BEARER)].lower() != _BEARER:
            raise _unauthenticated("authorization is not a Bearer")
        session = self._sessions.find(header[len(_BEARER) :].strip())
        if session is None:
            raise _unauthenticated("the session has ended: log in again")
        return session


def _unauthenticated(details: str) -> Refused:
    return Refused(
        grpc.StatusCode.UNAUTHENTICATED, details, kind="Unauthenticated", principal=ANONYMOUS
    )


def log_refusal(
    refusals: RefusalLines, kind: str, principal: str, host: str, **fields: str
) -> None:
    """Write a line into the audit log, unless the same was written a moment ago or the owner has too many."""
    written = {name: shortened(value) for name, value in fields.items() if value}
    entry = (kind, *written.values())
    unlogged = refusals.admit(owner_of(principal, host), entry, monotonic_ms() / 1000)
    if unlogged is None:
        return
    more = {"not_logged_before": unlogged} if unlogged else {}
    _audit.warning(kind, principal=shortened(principal), host=shortened(host), **written, **more)


def host_of(peer: str) -> str:
    """`ipv4:10.0.0.1:4711` and `ipv6:%5B::1%5D:4711` without what is around the address."""
    address = peer.split(":", 1)[-1].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")
