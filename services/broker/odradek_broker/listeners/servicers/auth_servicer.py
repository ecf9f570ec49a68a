"""AuthService: logins by SASL over gRPC. The exchange is the Kafka listeners'; it ends with a session.

A login that takes longer than LOGIN_S_MAX, or more messages than any mechanism needs, is ended; at
most LOGINS_MAX are under way. Who fails is told so, without the reason, and the reason is in the
audit log.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from odradek_broker.security.grpc_sessions import GrpcSessions
from odradek_broker.security.sasl import Credentials, LoginFailed, SaslExchange
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb
from odradek_protocol.rpc.v1 import auth_service_pb2_grpc as pb_grpc
from odradek_runtime.logs import event_log

LOGIN_S_MAX: Final = 10.0
LOGINS_MAX: Final = 256
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
        self._under_way = 0

    # The stubs know only handlers that iterate; gRPC also takes those that read and write.
    async def Authenticate(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """One login."""
        if not self._mechanisms:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                "nobody logs in here: sasl.enabled.mechanisms is not set",
            )
        if self._under_way >= LOGINS_MAX:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many logins at once")
        self._under_way += 1
        try:
            async with asyncio.timeout(LOGIN_S_MAX):
                await self._log_in(context)
        except LoginFailed as failed:
            host = str(context.peer())
            _audit.warning("Login failed", host=host, user=failed.user, reason=str(failed))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failed")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the login took too long")
        finally:
            self._under_way -= 1

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
