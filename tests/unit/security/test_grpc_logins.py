"""Logins over gRPC: who gets in, for how long, and what the SDK does about it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from odradek import SaslCredentials, TlsOptions
from odradek.admin.access import ScramMechanism, salted_password
from odradek.cli.certificate_authority import CertificateAuthority
from odradek.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    InvalidConfig,
    InvalidRequest,
    UnsupportedOperation,
)
from odradek.transports.grpc_transport import GrpcTransport
from odradek.transports.methods import AUTHENTICATE, METADATA, PRODUCE, WATCH_METADATA
from odradek_protocol.rpc.v1 import auth_service_pb2
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.tls import TlsFiles
from tests.unit.security.login_server import MECHANISMS, LoginServer, login_server


async def who_am_i(transport: GrpcTransport, server: LoginServer) -> str:
    answer = await transport.call(server.endpoint, METADATA, pb.MetadataRequest(), timeout_s=10)
    return answer.cluster_id


def as_user(name: str = "alice", password: str = "secret", **more: str) -> SaslCredentials:
    return SaslCredentials(username=name, password=password, **more)


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
        with pytest.raises(AuthenticationFailed, match="log in first"):
            await who_am_i(transport, server)
        watch = transport.open(server.endpoint, WATCH_METADATA)
        with pytest.raises(AuthenticationFailed, match="log in first"):  # noqa: PT012
            await watch.send(pb.WatchMetadataRequest())
            await watch.receive()
        produce = transport.open(server.endpoint, PRODUCE)
        with pytest.raises(AuthenticationFailed, match="log in first"):  # noqa: PT012
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
    with pytest.raises(InvalidConfig, match="no TLS"):
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


async def test_an_exchange_out_of_order_is_ended() -> None:
    """A second client-first in place of the proof, and a proof with nothing before it."""
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        for tokens in (
            [b"n,,n=alice,r=abcdefghijkl", b"n,,n=alice,r=abcdefghijkl"],
            [b"c=biws,r=abc,p=AAAA"],
            [b""],
            [b"n,,n=alice,r=abcdefghijkl", b"c=biws,r=another-nonce,p=AAAA"],
            [b"\xff" * 20_000],
        ):
            stream = transport.open(server.endpoint, AUTHENTICATE)
            with pytest.raises((AuthenticationFailed, BrokerUnreachable)):  # noqa: PT012
                for token in tokens:
                    await stream.send(
                        auth_service_pb2.AuthenticateRequest(mechanism="SCRAM-SHA-512", token=token)
                    )
                    answer = await stream.receive()
                    assert answer is not None
                    assert not answer.session
        assert len(server.sessions) == 0
        await transport.close()


def test_credentials_do_not_show_in_their_text() -> None:
    assert "secret" not in repr(as_user())
    for user, password, mechanism in (
        ("", "x", "PLAIN"),
        ("x", "", "PLAIN"),
        ("x", "x", "GSSAPI"),
    ):
        with pytest.raises(InvalidConfig):
            SaslCredentials(username=user, password=password, mechanism=mechanism)


@pytest.mark.parametrize("password", ["", "\x00", "a\x7fb", "\u00ad"])
def test_a_password_that_cannot_be_used_is_refused_before_it_is_stored(password: str) -> None:
    with pytest.raises(InvalidRequest):
        salted_password(ScramMechanism.SCRAM_SHA_512, password, 4096)
