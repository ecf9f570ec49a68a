"""Logins over gRPC: which ones succeed, how long they last, and how the SDK logs in again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from odradek import SaslCredentials, TlsOptions
from odradek.admin.access import ScramMechanism, salted_password
from odradek.cli.certificate_authority import CertificateAuthority
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.methods import AUTHENTICATE, METADATA, PRODUCE, WATCH_METADATA
from odradek.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    InvalidConfig,
    InvalidRequest,
    OdradekError,
    UnsupportedOperation,
)
from odradek_broker.access.grpc_sessions import GrpcSessions
from odradek_broker.rpc import auth_servicer
from odradek_protocol.metadata.records import ScramMechanism as BrokerMechanism
from odradek_protocol.metadata.records import UserScramCredential
from odradek_protocol.rpc.v1 import auth_service_pb2 as pb_auth
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.budget.client_budget import ClientBudget
from odradek_runtime.budget.refusals import DELAY_MS, LINES_BURST
from odradek_runtime.clock import monotonic_ms
from odradek_runtime.jwt_tokens import TokenRules, TokenVerifier
from odradek_runtime.tls import TlsFiles
from tests.e2e.token_issuer import TokenIssuer
from tests.unit.security.login_server import MECHANISMS, LoginServer, login_server

CLIENT_FIRST = b"n,,n=alice,r=abcdefghijkl"


async def who_am_i(transport: GrpcTransport, server: LoginServer) -> str:
    answer = await transport.call(server.endpoint, METADATA, pb.MetadataRequest(), timeout_s=10)
    return answer.cluster_id


def as_user(
    name: str = "alice", password: str = "secret", mechanism: str = "SCRAM-SHA-512"
) -> SaslCredentials:
    return SaslCredentials(username=name, password=password, mechanism=mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "zoë"])
async def test_a_login_is_a_principal(mechanism: str, user: str) -> None:
    async with login_server() as server:
        server.add_user(user, "pä$$wörd ½", mechanism)
        transport = GrpcTransport(credentials=as_user(user, "pä$$wörd ½", mechanism=mechanism))
        assert await who_am_i(transport, server) == f"User:{user}@127.0.0.1"
        await asyncio.gather(*(who_am_i(transport, server) for _ in range(20)))
        assert len(server.sessions) == 1
        await transport.close()


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("nobody", "secret"), ("nobody", "wrong")]
)
async def test_who_does_not_know_the_password_learns_nothing_else(
    user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport(credentials=as_user(user, password))
        with pytest.raises(AuthenticationFailed, match="authentication failed") as refused:
            await who_am_i(transport, server)
        assert not refused.value.retriable
        assert len(server.sessions) == 0
        await transport.close()
    told = [r for r in caplog.records if r.name == "odradek_broker.audit"]
    assert told
    assert password not in caplog.text


async def test_without_a_login_nothing_is_served() -> None:
    async with login_server() as server:
        transport = GrpcTransport()
        with pytest.raises(AuthenticationFailed, match="this listener requires a login"):
            await who_am_i(transport, server)
        watch = transport.open(server.endpoint, WATCH_METADATA)
        with pytest.raises(AuthenticationFailed, match="this listener requires a login"):  # noqa: PT012
            await watch.send(pb.WatchMetadataRequest())
            await watch.receive()
        produce = transport.open(server.endpoint, PRODUCE)
        with pytest.raises(AuthenticationFailed, match="this listener requires a login"):  # noqa: PT012
            await produce.send(pb.ProduceRequest(request_id=1))
            await produce.receive()
        await transport.close()


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", "Bearer nonsense"),),
        (("authorization", "Basic YTpi"),),
        (("authorization", "Bearer a"), ("authorization", "Bearer b")),
        (("authorization", ""),),
    ],
)
async def test_a_made_up_session_is_refused(metadata: tuple[tuple[str, str], ...]) -> None:
    async with login_server() as server:
        transport = GrpcTransport()
        with pytest.raises(AuthenticationFailed):
            await transport.call(
                server.endpoint, METADATA, pb.MetadataRequest(), timeout_s=10, metadata=metadata
            )
        await transport.close()


async def test_a_deleted_user_is_out_at_once_and_a_new_password_takes_a_new_login() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport(credentials=as_user())
        stream = transport.open(server.endpoint, WATCH_METADATA)
        await stream.send(pb.WatchMetadataRequest())
        assert await stream.receive() is not None
        server.add_user("alice", "secret")  # the same password, salted anew
        server.sessions.sweep()
        with pytest.raises(BrokerUnreachable):
            await stream.receive()
        assert await who_am_i(transport, server) == "User:alice@127.0.0.1"  # logged in again
        server.users.clear()
        with pytest.raises(AuthenticationFailed):
            await who_am_i(transport, server)
        await transport.close()


async def test_streams_carry_the_login() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport(credentials=as_user())
        produce = transport.open(server.endpoint, PRODUCE)
        for number in (1, 2):
            await produce.send(pb.ProduceRequest(request_id=number))
            answer = await produce.receive()
            assert answer is not None
            assert answer.request_id == number
        produce.cancel()
        with pytest.raises(BrokerUnreachable):
            await produce.receive()
        await transport.close()


async def test_a_session_runs_out_and_the_client_has_another_before() -> None:
    async with login_server(lifetime_ms=0) as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport(credentials=as_user())
        with pytest.raises(AuthenticationFailed, match="session has ended"):
            await who_am_i(transport, server)
        server.sessions.lifetime_ms = 100_000
        for _ in range(3):
            await who_am_i(transport, server)
        assert len(server.sessions) == 1
        await transport.close()


async def test_plain_goes_through_tls_only(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=1)
    certificate, key = authority.issue("broker-1", hosts=["127.0.0.1"], days=1)
    files = TlsFiles(certificate=certificate, key=key, ca=ca)
    credentials = as_user(mechanism="PLAIN")
    with pytest.raises(InvalidConfig, match="TLS is off"):
        GrpcTransport(credentials=credentials)
    async with login_server(mechanisms=("PLAIN",), tls=files) as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport(TlsOptions(ca=ca), credentials=credentials)
        assert await who_am_i(transport, server) == "User:alice@127.0.0.1"
        await transport.close()
        wrong = GrpcTransport(
            TlsOptions(ca=ca), credentials=as_user(password="no", mechanism="PLAIN")
        )
        with pytest.raises(AuthenticationFailed):
            await who_am_i(wrong, server)
        await wrong.close()


async def test_a_mechanism_that_is_not_offered_says_what_is() -> None:
    async with login_server(mechanisms=("SCRAM-SHA-256",)) as server:
        transport = GrpcTransport(credentials=as_user())
        with pytest.raises(Exception, match="SCRAM-SHA-256"):
            await who_am_i(transport, server)
        await transport.close()
    async with login_server(mechanisms=()) as server:
        transport = GrpcTransport(credentials=as_user())
        with pytest.raises(UnsupportedOperation):
            await who_am_i(transport, server)
        await transport.close()


async def step(
    transport: GrpcTransport, server: LoginServer, token: bytes, *, exchange: str = ""
) -> pb_auth.AuthenticateResponse:
    """Send one message of a login by SCRAM-SHA-512."""
    first = ("odradek-sasl-mechanism", "SCRAM-SHA-512")
    told = ("odradek-sasl-exchange", exchange) if exchange else first
    return await transport.call(
        server.endpoint,
        AUTHENTICATE,
        pb_auth.AuthenticateRequest(),
        timeout_s=10,
        metadata=(told, ("odradek-sasl-token-bin", token)),
    )


@pytest.mark.parametrize(
    "tokens",
    [
        [CLIENT_FIRST, CLIENT_FIRST],
        [b"c=biws,r=abc,p=AAAA"],
        [b""],
        [CLIENT_FIRST, b"c=biws,r=another-nonce,p=AAAA"],
        [b"\xff" * 5_000],
    ],
)
async def test_an_exchange_out_of_order_is_ended(tokens: list[bytes]) -> None:
    """The client sends a second client-first message in place of the proof, or a proof without a
    first message.
    """
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        exchange = ""
        for token in tokens[:-1]:
            exchange = (await step(transport, server, token, exchange=exchange)).exchange
        with pytest.raises(AuthenticationFailed, match="authentication failed"):
            await step(transport, server, tokens[-1], exchange=exchange)
        with pytest.raises(AuthenticationFailed, match="authentication failed"):  # it is over
            await step(transport, server, CLIENT_FIRST, exchange=exchange or "made-up")
        assert len(server.sessions) == 0
        await transport.close()


async def test_an_address_has_so_many_logins_under_way() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        begun = [
            await step(transport, server, CLIENT_FIRST)
            for _ in range(auth_servicer.LOGINS_PER_HOST_MAX)
        ]
        assert len({one.exchange for one in begun}) == len(begun)
        with pytest.raises(BrokerUnreachable, match="too many logins"):
            await step(transport, server, CLIENT_FIRST)
        with pytest.raises(AuthenticationFailed):  # one that fails makes room
            await step(transport, server, b"c=biws", exchange=begun[0].exchange)
        assert (await step(transport, server, CLIENT_FIRST)).exchange
        await transport.close()


async def test_a_login_that_nobody_goes_on_with_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth_servicer, "LOGIN_S_MAX", 0.0)
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        for _ in range(2 * auth_servicer.LOGINS_PER_HOST_MAX):
            begun = await step(transport, server, CLIENT_FIRST)
        with pytest.raises(AuthenticationFailed):
            await step(transport, server, b"c=biws", exchange=begun.exchange)
        await transport.close()


async def test_a_signed_token_is_a_login_until_it_ends(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=1)
    certificate, key = authority.issue("broker-1", hosts=["127.0.0.1"], days=1)
    issuer = TokenIssuer(tmp_path / "jwks.json")
    rules = TokenRules(jwks=issuer.jwks, issuer=issuer.name, audience=issuer.audience, leeway_s=0.0)
    tokens = [issuer.token("alice", lifetime_s=100), issuer.token("alice", lifetime_s=-100)]
    asked: list[str] = []

    def token() -> str:
        asked.append(tokens[len(asked)])
        return asked[-1]

    credentials = SaslCredentials(mechanism="OAUTHBEARER", token=token)
    with pytest.raises(InvalidConfig, match="TLS is off"):
        GrpcTransport(credentials=credentials)
    async with login_server(
        mechanisms=("OAUTHBEARER",),
        tls=TlsFiles(certificate=certificate, key=key, ca=ca),
        tokens=TokenVerifier(rules),
        lifetime_ms=3_600_000,
    ) as server:
        transport = GrpcTransport(TlsOptions(ca=ca), credentials=credentials)
        assert await who_am_i(transport, server) == "User:alice@127.0.0.1"
        assert await who_am_i(transport, server) == "User:alice@127.0.0.1"
        assert len(asked) == 1
        [session] = server.sessions._open.values()
        assert session.ends_at_ms <= monotonic_ms() + 100_000  # not the hour of a session
        session.ends_at_ms = monotonic_ms()
        with pytest.raises(AuthenticationFailed):  # the next token has run out
            await who_am_i(transport, server)
        assert len(asked) == 2
        await transport.close()


async def test_more_metadata_than_a_login_needs_is_refused_before_it_is_taken() -> None:
    async with login_server() as server:
        transport = GrpcTransport()
        with pytest.raises(OdradekError, match=r"(?i)metadata"):
            await step(transport, server, b"x" * (1 << 20))
        await transport.close()


def test_credentials_do_not_show_in_their_text() -> None:
    assert "secret" not in repr(as_user())
    for user, password, mechanism in (
        ("", "x", "PLAIN"),
        ("x", "", "PLAIN"),
        ("x", "x", "GSSAPI"),
        ("x", "x", "OAUTHBEARER"),
    ):
        with pytest.raises(InvalidConfig):
            SaslCredentials(username=user, password=password, mechanism=mechanism)


@pytest.mark.parametrize("password", ["", "\x00", "a\x7fb", "\u00ad"])
def test_a_password_that_cannot_be_used_is_refused_before_it_is_stored(password: str) -> None:
    with pytest.raises(InvalidRequest):
        salted_password(ScramMechanism.SCRAM_SHA_512, password, 4096)


class OneCall:
    """The context of one call of Authenticate: its headers, and how it ends."""

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return ((auth_servicer.MECHANISM, "PLAIN"), (auth_servicer.TOKEN, b"no password"))

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1234"

    def auth_context(self) -> dict[str, object]:
        return {}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(details)


async def test_failed_logins_are_delayed_and_logged_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", wait)
    nobody: dict[tuple[str, BrokerMechanism], UserScramCredential] = {}
    budget = ClientBudget()
    servicer = auth_servicer.AuthServicer(
        mechanisms=("PLAIN",),
        credentials=lambda: nobody,
        sessions=GrpcSessions(lambda: nobody, lifetime_ms=1),
        budget=budget,
    )
    call: Any = OneCall()
    for _ in range(LINES_BURST + 50):
        with pytest.raises(PermissionError):
            await servicer.authenticate(None, call)
    assert len(waited) == LINES_BURST + 50
    assert max(waited) > min(waited) == DELAY_MS / 1000
    lines = [r for r in caplog.records if r.name == "odradek_broker.audit"]
    assert 0 < len(lines) <= LINES_BURST + 1
    assert budget.proofs.shares.total == 0
