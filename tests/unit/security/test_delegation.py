"""Only gateways may send requests in the name of their callers (`odradek-on-behalf-of`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek import SaslCredentials, TlsOptions
from odradek.cli.certificate_authority import CertificateAuthority
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.methods import LIST_OFFSETS, METADATA
from odradek.errors import AuthorizationFailed, InvalidRequest, OdradekError
from odradek_broker.access.authorizer import AclAuthorizer
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.tls import TlsFiles
from tests.unit.security.login_server import LoginServer, login_server

GATEWAY = "User:CN=gateway"
Metadata = tuple[tuple[str, str], ...]
ALICE: Metadata = (("odradek-on-behalf-of", "User:alice"),)


@pytest.fixture
def tls_of(tmp_path: Path) -> Callable[[str], TlsFiles]:
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=1)

    def issue(name: str) -> TlsFiles:
        certificate, key = authority.issue(name, hosts=["127.0.0.1"], days=1)
        return TlsFiles(certificate=certificate, key=key, ca=ca)

    return issue


def transport_of(files: TlsFiles) -> GrpcTransport:
    return GrpcTransport(TlsOptions(ca=files.ca, cert=files.certificate, key=files.key))


async def ask(transport: GrpcTransport, server: LoginServer, metadata: Metadata) -> str:
    answer = await transport.call(
        server.endpoint, METADATA, pb.MetadataRequest(), timeout_s=10, metadata=metadata
    )
    return answer.cluster_id


async def outcome(transport: GrpcTransport, server: LoginServer, metadata: Metadata) -> str | type:
    """Return the principal that the broker reports for the caller, or the type of the error."""
    try:
        return await ask(transport, server, metadata)
    except OdradekError as error:
        return type(error)


@pytest.mark.parametrize(
    ("metadata", "is_who"),
    [
        ((), f"{GATEWAY}@127.0.0.1"),
        (ALICE, "User:alice@127.0.0.1"),
        ((*ALICE, ("odradek-on-behalf-of-host", "10.1.2.3")), "User:alice@10.1.2.3"),
        ((("odradek-on-behalf-of", "User:zo%C3%AB%25"),), "User:zoë%@127.0.0.1"),
        ((("odradek-on-behalf-of", "User:CN=x,O=y"),), "User:CN=x,O=y@127.0.0.1"),
        ((("odradek-on-behalf-of", "alice"),), InvalidRequest),
        ((("odradek-on-behalf-of", "User:"),), InvalidRequest),
        ((("odradek-on-behalf-of", ""),), InvalidRequest),
        ((("odradek-on-behalf-of-host", "10.1.2.3"),), InvalidRequest),
    ],
)
async def test_a_gateway_is_who_it_speaks_for(
    tls_of: Callable[[str], TlsFiles], metadata: Metadata, is_who: str | type
) -> None:
    async with login_server(
        wants_login=False, delegates=(GATEWAY,), tls=tls_of("broker-1"), mutual=True
    ) as server:
        transport = transport_of(tls_of("gateway"))
        assert await outcome(transport, server, metadata) == is_who
        await transport.close()


async def test_nobody_else_speaks_for_others(
    tls_of: Callable[[str], TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    """Another certificate, a login of any user, and a caller without either are refused."""
    async with login_server(
        wants_login=False, delegates=(GATEWAY,), tls=tls_of("broker-1"), mutual=True
    ) as server:
        transport = transport_of(tls_of("mallory"))
        assert await outcome(transport, server, ()) == "User:CN=mallory@127.0.0.1"
        assert await outcome(transport, server, ALICE) is AuthorizationFailed
        await transport.close()
    for delegates in ((GATEWAY,), ("User:ANONYMOUS",)):
        async with login_server(wants_login=False, delegates=delegates) as server:
            nobody = GrpcTransport()
            assert await outcome(nobody, server, ALICE) is AuthorizationFailed
            await nobody.close()
    async with login_server(delegates=(GATEWAY, "User:gw")) as server:
        server.add_user("gw", "secret")
        login = GrpcTransport(credentials=SaslCredentials(username="gw", password="secret"))
        assert await outcome(login, server, ()) == "User:gw@127.0.0.1"
        assert await outcome(login, server, ALICE) is AuthorizationFailed
        await login.close()
    told = [
        (r.getMessage(), r.odradek_fields["principal"])  # type: ignore[attr-defined]
        for r in caplog.records
        if r.name == "odradek_broker.audit"
    ]
    assert ("Delegation refused", "User:CN=mallory") in told
    assert ("Delegation refused", "User:ANONYMOUS") in told


async def test_the_rights_of_the_caller_count_and_the_gateways_do_not(
    tls_of: Callable[[str], TlsFiles],
) -> None:
    authorizer = AclAuthorizer(super_users=[GATEWAY])
    async with login_server(
        authorizer=authorizer,
        wants_login=False,
        delegates=(GATEWAY,),
        tls=tls_of("broker-1"),
        mutual=True,
    ) as server:
        transport = transport_of(tls_of("gateway"))
        asked = pb.ListOffsetsRequest(partitions=[{"topic": "t"}])
        await transport.call(server.endpoint, LIST_OFFSETS, asked, timeout_s=10)
        with pytest.raises(AuthorizationFailed, match="User:alice needs DESCRIBE on TOPIC t"):
            await transport.call(server.endpoint, LIST_OFFSETS, asked, timeout_s=10, metadata=ALICE)
        await transport.close()


async def test_a_gateway_does_not_speak_for_super_users(
    tls_of: Callable[[str], TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker who takes over a gateway must not become an administrator, even if the gateway itself is a super
    user.
    """
    async with login_server(
        authorizer=AclAuthorizer(super_users=["User:CN=admin", GATEWAY]),
        wants_login=False,
        delegates=(GATEWAY,),
        tls=tls_of("broker-1"),
        mutual=True,
    ) as server:
        transport = transport_of(tls_of("gateway"))
        asked = pb.ListOffsetsRequest(partitions=[{"topic": "t"}])
        for name in ("User:CN=admin", "User:CN%3Dadmin", GATEWAY):
            metadata = (("odradek-on-behalf-of", name),)
            with pytest.raises(AuthorizationFailed, match="connect to the brokers directly"):
                await transport.call(
                    server.endpoint, LIST_OFFSETS, asked, timeout_s=10, metadata=metadata
                )
        await transport.close()
        admin = transport_of(tls_of("admin"))
        await admin.call(server.endpoint, LIST_OFFSETS, asked, timeout_s=10)
        await admin.close()
    refused = [r for r in caplog.records if r.getMessage() == "Delegation refused"]
    assert {r.odradek_fields["principal"] for r in refused} == {GATEWAY}  # type: ignore[attr-defined]


async def test_without_an_authorizer_super_users_are_callers_like_others(
    tls_of: Callable[[str], TlsFiles],
) -> None:
    async with login_server(
        wants_login=False, delegates=(GATEWAY,), tls=tls_of("broker-1"), mutual=True
    ) as server:
        transport = transport_of(tls_of("gateway"))
        named = (("odradek-on-behalf-of", "User:CN=admin"),)
        assert await outcome(transport, server, named) == "User:CN=admin@127.0.0.1"
        await transport.close()
