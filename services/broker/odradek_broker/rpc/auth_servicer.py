"""AuthService: logins by SASL over gRPC. The SASL exchange is the same as on the Kafka listeners, and its result is a
session.

Tokens are sent in the metadata of calls, which gRPC limits to 16 KiB, and the broker reads no message. Thus a caller
that has not logged in cannot make the broker buffer a message, which may have 33 MiB. A login that does not complete
within LOGIN_S_MAX is discarded. At most LOGINS_MAX logins are in progress, and a caller without a certificate cannot
begin one while LOGINS_PER_HOST_MAX logins from its address are in progress. A failed login is reported without the
reason, after the same delay as on the Kafka listeners. The reason is written to the audit log.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.access.logins import Logins
from odradek_broker.access.sasl import Credentials, LoginFailed, SaslExchange, note_failed_login
from odradek_broker.rpc.callers import MethodHandler, ServerContext, host_of
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.shares import owner_of

if TYPE_CHECKING:
    from odradek_runtime.jwt_tokens import TokenVerifier

LOGIN_S_MAX: Final = 10.0
LOGINS_MAX: Final = 256
LOGINS_PER_HOST_MAX: Final = 16
MECHANISM: Final = "odradek-sasl-mechanism"
EXCHANGE: Final = "odradek-sasl-exchange"
TOKEN: Final = "odradek-sasl-token-bin"
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["AuthService"].full_name
_NAME_BYTES: Final = 32


@dataclass(slots=True, kw_only=True, eq=False)
class _Login:
    """A login in progress."""

    exchange: SaslExchange
    host: str
    timer: asyncio.TimerHandle


class AuthServicer:
    """Serves the logins of one listener, which offers `mechanisms`. `tokens` verifies the tokens of OAUTHBEARER."""

    def __init__(
        self,
        *,
        mechanisms: tuple[str, ...],
        credentials: Credentials,
        sessions: GrpcSessions,
        budget: ClientBudget,
        tokens: TokenVerifier | None = None,
        logins: Logins | None = None,
    ) -> None:
        self._mechanisms = mechanisms
        self._logins = logins
        self._credentials = credentials
        self._sessions = sessions
        self._budget = budget
        self._tokens = tokens
        self._in_progress: dict[str, _Login] = {}
        self._of_host: Counter[str] = Counter()

    async def authenticate(self, _requests: object, context: ServerContext) -> None:
        """Handle one step of a login. For gRPC the request is a stream, so that the broker can leave the stream's
        messages unread.
        """
        if not self._mechanisms:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                "this listener does not support logins: connect without one, or set sasl.enabled.mechanisms on the"
                " brokers",
            )
        headers = dict(context.invocation_metadata() or ())
        host = host_of(context.peer())
        # In gRPC, the value of a header is text, or bytes if the name ends in -bin.
        mechanism, token = str(headers.get(MECHANISM, "")), headers.get(TOKEN, b"")
        name = str(headers.get(EXCHANGE, "")) or await self._begin(mechanism, host, context)
        login = self._in_progress.get(name)
        try:
            if login is None:
                raise LoginFailed("the login in progress is unknown, or took too long")
            assert isinstance(token, bytes), type(token)
            response = await self._step(name, login, token)
        except LoginFailed as failed:
            self._end(name)
            await note_failed_login(failed, host, self._budget)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failed")
        await context.write(response)

    async def _begin(self, mechanism: str, host: str, context: ServerContext) -> str:
        """Begin a SASL exchange. Return the random name by which the client's next calls refer to it."""
        has_certificate = bool(context.auth_context().get("x509_pem_cert"))
        if len(self._in_progress) >= LOGINS_MAX or (
            self._of_host[host] >= LOGINS_PER_HOST_MAX and not has_certificate
        ):
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "too many logins are in progress: try again later"
            )
        exchange = SaslExchange(
            mechanisms=self._mechanisms,
            credentials=self._credentials,
            tokens=self._tokens,
            logins=self._logins,
        )
        if not exchange.choose(mechanism):
            offered = ", ".join(self._mechanisms)
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"this listener does not offer the mechanism {mechanism!r}: use one of {offered}",
            )
        name = secrets.token_urlsafe(_NAME_BYTES)
        timer = asyncio.get_running_loop().call_later(LOGIN_S_MAX, self._end, name)
        self._in_progress[name] = _Login(exchange=exchange, host=host, timer=timer)
        self._of_host[host] += 1
        return name

    async def _step(self, name: str, login: _Login, token: bytes) -> pb.AuthenticateResponse:
        exchange = login.exchange
        async with self._budget.proofs.held(owner_of("", login.host), 1):
            response = await exchange.step(token)
        if not exchange.is_complete:
            return pb.AuthenticateResponse(token=response, exchange=name)
        if not self._end(name):
            raise LoginFailed("the login took too long", user=exchange.user or "")
        assert exchange.user is not None
        lifetime_ms = self._sessions.lifetime_ms
        if exchange.lifetime_ms is not None:
            lifetime_ms = min(lifetime_ms, exchange.lifetime_ms)
        session = self._sessions.open(exchange.user, exchange.credential, lifetime_ms=lifetime_ms)
        return pb.AuthenticateResponse(
            token=response, is_complete=True, session=session, lifetime_ms=lifetime_ms
        )

    def _end(self, name: str) -> bool:
        """Remove a login in progress. Return False if it was already removed."""
        login = self._in_progress.pop(name, None)
        if login is None:
            return False
        login.timer.cancel()
        self._of_host[login.host] -= 1
        if not self._of_host[login.host]:
            del self._of_host[login.host]
        return True


def add_to(server: grpc.aio.Server, servicer: AuthServicer) -> str:
    """Register the servicer, and return the service's full name."""
    handler: MethodHandler = grpc.stream_stream_rpc_method_handler(
        servicer.authenticate, response_serializer=pb.AuthenticateResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Authenticate": handler}),)
    )
    return _SERVICE
