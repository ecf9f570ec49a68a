"""AuthService: logins by SASL over gRPC. The exchange is the Kafka listeners'; it ends with a session.

A login that takes longer than LOGIN_S_MAX, or more messages than any mechanism needs, is ended. At
most LOGINS_MAX are under way, and LOGINS_PER_HOST_MAX of one address that shows no certificate: a
message may take 64 MiB before it is looked at. Who fails is told so, without the reason, and the reason is in the
audit log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.listeners.grpc_callers import host_of
from odradek_broker.security.grpc_sessions import GrpcSessions
from odradek_broker.security.sasl import Credentials, LoginFailed, SaslExchange
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb
from odradek_protocol.rpc.v1 import auth_service_pb2_grpc as pb_grpc
from odradek_runtime.logs import event_log

LOGIN_S_MAX: Final = 10.0
LOGINS_MAX: Final = 256
LOGINS_PER_HOST_MAX: Final = 16
_MESSAGES_MAX: Final = 3
_audit = event_log("odradek_broker.audit")


class AuthServicer(pb_grpc.AuthServiceServicer):
    """`mechanisms` are those of its listener; none: nobody logs in there."""

    def __init__(
        self, *, mechanisms: tuple[str, ...], credentials: Credentials, sessions: GrpcSessions
    ) -> None:
        self._mechanisms = mechanisms
        self._credentials = credentials
        self._sessions = sessions
        self._under_way: Counter[str] = Counter()

    # The stubs know only handlers that iterate; gRPC also takes those that read and write.
    async def Authenticate(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """One login."""
        if not self._mechanisms:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                "nobody logs in here: sasl.enabled.mechanisms is not set",
            )
        host = host_of(context.peer())
        has_certificate = bool(context.auth_context().get("x509_pem_cert"))
        if self._under_way.total() >= LOGINS_MAX or (
            self._under_way[host] >= LOGINS_PER_HOST_MAX and not has_certificate
        ):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many logins at once")
        self._under_way[host] += 1
        try:
            async with asyncio.timeout(LOGIN_S_MAX):
                await self._log_in(context)
        except LoginFailed as failed:
            _audit.warning("Login failed", host=host, user=failed.user, reason=str(failed))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failed")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the login took too long")
        finally:
            self._under_way[host] -= 1
            if not self._under_way[host]:
                del self._under_way[host]

    async def _log_in(self, context: Any) -> None:
        exchange = SaslExchange(mechanisms=self._mechanisms, credentials=self._credentials)
        for number in range(_MESSAGES_MAX):
            request = await context.read()
            if request is grpc.aio.EOF:
                raise LoginFailed("the client left before the end")
            if number == 0 and not exchange.choose(request.mechanism):
                offered = ", ".join(self._mechanisms)
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"mechanism {request.mechanism!r} is not offered here; there are {offered}",
                )
            token = await exchange.step(request.token)
            if exchange.is_complete:
                assert exchange.credential is not None
                await context.write(
                    pb.AuthenticateResponse(
                        token=token,
                        is_complete=True,
                        session=self._sessions.open(exchange.credential),
                        lifetime_ms=self._sessions.lifetime_ms,
                    )
                )
                return
            await context.write(pb.AuthenticateResponse(token=token))
        raise LoginFailed("more messages than the mechanism has")


def add_to(server: grpc.aio.Server, servicer: AuthServicer) -> str:
    """Register the servicer; returns the service's full name."""
    pb_grpc.add_AuthServiceServicer_to_server(servicer, server)
    return "odradek.v1.AuthService"
