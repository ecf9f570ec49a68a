"""A gRPC listener with logins and access control, over a broker that returns each caller's
principal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from odradek.admin.access import ScramMechanism as SdkMechanism
from odradek.admin.access import salted_password
from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.access.sasl import credential_of
from odradek_broker.rpc import auth_servicer
from odradek_broker.rpc.authorization import Authorization
from odradek_broker.rpc.call_counts import GrpcCalls
from odradek_broker.rpc.callers import Callers, current_caller
from odradek_broker.rpc.intake import GrpcIntake
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc as pb_grpc
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.grpc_endpoints import new_client_server
from odradek_runtime.jwt_tokens import TokenVerifier
from odradek_runtime.tls import TlsFiles

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class WhoAmI(pb_grpc.BrokerServiceServicer):
    """A service that returns the caller's principal and host instead of the cluster id."""

    async def Metadata(self, request: pb.MetadataRequest, context: Any) -> pb.MetadataResponse:
        """Return the caller's principal and host."""
        caller = current_caller()
        return pb.MetadataResponse(cluster_id=f"{caller.principal}@{caller.host}")

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: Any
    ) -> pb.ListOffsetsResponse:
        """Returns an empty response to every caller that is admitted."""
        return pb.ListOffsetsResponse()

    async def WatchMetadata(
        self, request: pb.WatchMetadataRequest, context: Any
    ) -> AsyncIterator[pb.WatchMetadataResponse]:
        """Send one message, and then nothing more."""
        answer = await self.Metadata(pb.MetadataRequest(), context)
        yield pb.WatchMetadataResponse(metadata=answer)
        await asyncio.Event().wait()

    # The stubs know only handlers that iterate; gRPC also takes those that read and write.
    async def Produce(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """Return the received messages."""
        while (request := await context.read()) is not grpc.aio.EOF:
            current_caller().got_message(request.ByteSize())
            await context.write(pb.ProduceResponse(request_id=request.request_id))

    async def Fetch(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """Return nothing until the caller ends the stream."""
        while await context.read() is not grpc.aio.EOF:
            pass


@dataclass
class LoginServer:
    """A gRPC server with logins; `users` may be changed while it runs."""

    endpoint: str
    sessions: GrpcSessions
    users: dict[tuple[str, ScramMechanism], UserScramCredential] = field(default_factory=dict)

    def add_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Add a user with the smallest number of SCRAM iterations that is allowed."""
        kind = ScramMechanism(MECHANISMS.index(mechanism) + 1)
        salt, salted = salted_password(SdkMechanism(int(kind)), password, 4096)
        self.users[name, kind] = credential_of(
            name, kind, salt=salt, salted_password=salted, iterations=4096
        )


@contextlib.asynccontextmanager
async def login_server(
    *,
    authorizer: Authorizer | None = None,
    mechanisms: tuple[str, ...] = MECHANISMS,
    wants_login: bool = True,
    delegates: tuple[str, ...] = (),
    tls: TlsFiles | None = None,
    mutual: bool = False,
    lifetime_ms: int = 60_000,
    tokens: TokenVerifier | None = None,
    intake: GrpcIntake | None = None,
    calls: GrpcCalls | None = None,
) -> AsyncIterator[LoginServer]:
    """Serve until the `with` block ends."""
    users: dict[tuple[str, ScramMechanism], UserScramCredential] = {}
    sessions = GrpcSessions(lambda: users, lifetime_ms=lifetime_ms)
    callers = Callers(
        authorizer or EverybodyMay(),
        sessions,
        listener="GRPC",
        wants_login=wants_login,
        delegates=delegates,
    )
    server = new_client_server([Authorization(callers, intake=intake, calls=calls)])
    pb_grpc.add_BrokerServiceServicer_to_server(WhoAmI(), server)  # type: ignore[abstract]
    login = auth_servicer.AuthServicer(
        mechanisms=mechanisms,
        credentials=lambda: users,
        sessions=sessions,
        budget=ClientBudget(),
        tokens=tokens,
    )
    auth_servicer.add_to(server, login)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(require_client=mutual))
    await server.start()
    try:
        yield LoginServer(endpoint=f"127.0.0.1:{port}", sessions=sessions, users=users)
    finally:
        await server.stop(0)
