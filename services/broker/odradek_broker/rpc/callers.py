"""The callers of gRPC methods: their identification and their rights.

A caller's principal comes from the first of these sources that exists:

  1. The header `odradek-on-behalf-of`, in which a gateway names the principal whose request it forwards. The header is
     accepted only if the principal of the gateway's certificate is in `delegation.principals`. The call then has the
     rights of the named principal, not those of the gateway. The call is refused if the named principal is a super
     user, so that a compromised gateway does not get all rights.
  2. The header `authorization: Bearer SESSION`, for a user that has logged in (`AuthService.Authenticate`).
  3. The subject of the certificate, as on the Kafka listeners.
  4. User:ANONYMOUS, which a listener that requires a login (SASL_...) refuses.

Every refusal is written to the audit log. Equal refusals are logged once a minute, the refusals of one client are
logged at a limited rate, and long names are shortened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

from odradek_broker.access.authorizer import Authorizer
from odradek_broker.access.grpc_sessions import GrpcSession, GrpcSessions
from odradek_broker.access.rights import Need
from odradek_broker.rpc.unfinished import WatchedStream
from odradek_protocol.access import Operation, ResourceType
from odradek_runtime.budget.loop_turns import LoopTurns, Pace
from odradek_runtime.budget.refusals import RefusalLines, shortened
from odradek_runtime.budget.shares import owner_of
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.logs import event_log
from odradek_runtime.tls import ANONYMOUS, principal_of_certificate

_audit = event_log("odradek_broker.audit")
CLIENT_ID: Final = "odradek-client-id"
"""The header with the client id, for quotas."""
ON_BEHALF_OF: Final = "odradek-on-behalf-of"
ON_BEHALF_OF_HOST: Final = "odradek-on-behalf-of-host"
SESSION: Final = "authorization"
_BEARER: Final = "bearer "
_PRINCIPAL_CHARACTERS_MAX: Final = 1024
_BROKERS: Final = LoopTurns()  # paces the calls of other brokers
_AT_ONCE: Final = 20
# Any, because servicers use only methods of a context that do not depend on the types of its messages.
ServerContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]
# Any, because the type stubs describe the handlers of a synchronous server, but these handlers are coroutines.
MethodHandler: TypeAlias = Any
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")


class Refused(Exception):
    """A call is refused with this gRPC status. `kind` is the event text in the audit log."""

    def __init__(self, code: grpc.StatusCode, details: str, *, kind: str, principal: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.kind = kind
        self.principal = principal


class Caller:
    """The caller of one RPC, and the listener that it used."""

    __slots__ = (
        "_authorizer",
        "_refusals",
        "client_id",
        "host",
        "listener",
        "pace",
        "principal",
        "session",
        "stream",
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
        """`via` is the principal of the gateway that forwards the call, or ""; `session` is None without a login."""
        self._refusals = refusals or RefusalLines()
        self.pace: Pace | None = None
        self.stream: WatchedStream | None = None
        self._authorizer = authorizer
        self.principal = principal
        self.host = host
        self.client_id = client_id
        self.listener = listener
        self.session = session
        self.via = via

    def got_message(self, size_bytes: int) -> None:
        """Record that a complete message has arrived on the caller's stream."""
        if self.stream is not None:
            self.stream.delivered(size_bytes, monotonic_ms() / 1000)

    @property
    def owner(self) -> str:
        """The principal or address against whose share this caller's memory and time count
        (`odradek_runtime.budget.shares`).
        """
        return owner_of(self.principal, self.host)

    def may(self, operation: Operation, topic: str) -> bool:
        """Return whether the caller may do the operation on the topic."""
        return not self._authorizer.is_on or self._authorizer.allows(
            self.principal, self.host, operation, ResourceType.TOPIC, topic
        )

    def has(self, need: Need) -> bool:
        """Return whether the caller has at least one of the rights in `need`."""
        return not self._authorizer.is_on or any(
            self._authorizer.allows_any(self.principal, self.host, operation, kind)
            if name is None
            else self._authorizer.allows(self.principal, self.host, operation, kind, name)
            for operation, kind, name in need
        )

    def denied(self, request: str, need: Need) -> str:
        """Write a refusal to the audit log, and return an error text for the caller."""
        rights = " or ".join(
            f"{operation.name} on {kind.name} {shortened(name or '(any)')}"
            for operation, kind, name in need
        )
        fields = {"request": request, "needs": rights, "via": self.via}
        log_refusal(self._refusals, "Denied a request", self.principal, self.host, **fields)
        return f"{self.principal} needs {rights or 'a right that no ACL can grant'}"

    def denied_topic(
        self, request: str, operation: Operation, topic: str, given_name: str | None = None
    ) -> str:
        """Write the refusal of an operation on a topic to the audit log, and return an error text for the caller.

        `given_name` is the topic's name in the request; it is empty if the request has only the topic's id. The text
        contains only this name, because a caller that knows an id must not learn the name of a topic that it may not
        see.
        """
        sentence = self.denied(request, [(operation, ResourceType.TOPIC, topic)])
        if given_name is None or given_name == topic:
            return sentence
        return f"{self.principal} needs {operation.name} on TOPIC {given_name}".rstrip()


_current: ContextVar[Caller] = ContextVar("odradek_grpc_caller")


def serve_as(caller: Caller) -> None:
    """Set the caller of the call that the current task serves."""
    _current.set(caller)


def current_caller() -> Caller:
    """Return the caller of the call that the current task serves."""
    return _current.get()


def client_caller() -> Caller | None:
    """Return the client whose call the current task serves, or None for a call of another broker."""
    return _current.get(None)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over the items of a request, and let other work run between them."""
    caller = client_caller()
    pace = None if caller is None else caller.pace
    async for item in (pace or _BROKERS.pace("brokers")).items(items):
        yield item


async def results_in_turns(items: Sequence[T], handle: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the result of each item. Up to 20 items are handled at the same time, and other work runs in between."""
    results: list[R] = []
    async for start in in_turns(range(0, len(items), _AT_ONCE)):
        results += await asyncio.gather(*map(handle, items[start : start + _AT_ONCE]))
    return results


class Repeated(Protocol[T_contra]):
    """A repeated field of a protobuf message."""

    def append(self, item: T_contra, /) -> None: ...


async def put_in_turns(field: Repeated[T], items: Iterable[T]) -> None:
    """Append items to a repeated field, and let other work run between them."""
    async for item in in_turns(items):
        field.append(item)


class Callers:
    """Identifies the callers on one listener."""

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
        """Return the caller of a call.

        Raises:
            Refused: the identity is not valid, or it is missing on a listener that requires a login.
        """
        headers: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if key in (CLIENT_ID, ON_BEHALF_OF, ON_BEHALF_OF_HOST, SESSION):
                if key in headers and key != CLIENT_ID:
                    raise _unauthenticated(f"the call has more than one {key} header")
                headers[key] = value if isinstance(value, str) else value.decode(errors="replace")
        host = host_of(context.peer())
        pems: list[bytes] = list(context.auth_context().get("x509_pem_cert", ()))
        principal = principal_of_certificate(pems[0]) if pems else ANONYMOUS
        session: GrpcSession | None = None
        via = ""
        if ON_BEHALF_OF in headers or ON_BEHALF_OF_HOST in headers:
            via, principal = principal, self._named(principal, headers.get(ON_BEHALF_OF, ""))
            host = headers.get(ON_BEHALF_OF_HOST) or host
        elif SESSION in headers:
            session = self._session(headers[SESSION])
            principal = session.principal
        elif self._wants_login:
            raise _unauthenticated("this listener requires a login (AuthService.Authenticate)")
        return Caller(
            self.authorizer,
            principal=principal,
            host=host,
            client_id=headers.get(CLIENT_ID, ""),
            listener=self._listener,
            session=session,
            via=via,
            refusals=self.refusals,
        )

    def may_be_heard(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
        """Return whether the broker may read the request of a call: the listener requires no login, or the headers name
        a valid session.

        `identify` checks the caller itself later.
        """
        if not self._wants_login:
            return True
        sessions = [str(value) for key, value in metadata or () if key == SESSION]
        try:
            return len(sessions) == 1 and self._session(sessions[0]) is not None
        except Refused:
            return False

    def _named(self, peer: str, quoted: str) -> str:
        if peer == ANONYMOUS or peer not in self._delegates:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{peer} may not send requests for other principals: add it to delegation.principals of the brokers",
                kind="Delegation refused",
                principal=peer,
            )
        name = unquote(quoted)
        if not name.startswith("User:") or not 5 < len(name) <= _PRINCIPAL_CHARACTERS_MAX:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the header {ON_BEHALF_OF} must contain a principal, such as User:alice",
                kind="Delegation refused",
                principal=peer,
            )
        if self.authorizer.is_super_user(name):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{peer} may not send requests for {name}, which is in super.users: connect to the brokers directly,"
                " or use a principal whose rights come from ACLs",
                kind="Delegation refused",
                principal=peer,
            )
        return name

    def _session(self, header: str) -> GrpcSession:
        if header[: len(_BEARER)].lower() != _BEARER:
            raise _unauthenticated("the authorization header must be `Bearer SESSION`")
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
    """Write a refusal to the audit log, unless an equal one was logged within the last minute or the client has too
    many refusals.
    """
    written = {name: shortened(value) for name, value in fields.items() if value}
    entry = (kind, *written.values())
    unlogged = refusals.admit(owner_of(principal, host), entry, monotonic_ms() / 1000)
    if unlogged is None:
        return
    more = {"not_logged_before": unlogged} if unlogged else {}
    _audit.warning(kind, principal=shortened(principal), host=shortened(host), **written, **more)


def host_of(peer: str) -> str:
    """Return the address in a peer's name such as `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    address = peer.split(":", 1)[-1].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")
