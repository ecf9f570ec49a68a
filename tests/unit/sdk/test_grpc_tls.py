"""The gRPC transport over TLS: who is trusted, files that cannot be used, and listeners that require something else."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from odradek import Client, TlsOptions
from odradek.cluster.cluster import Cluster
from odradek.cluster.grpc_transport import GrpcTransport
from odradek.cluster.methods import METADATA
from odradek.errors import (
    BrokersUnavailable,
    BrokerUnreachable,
    InvalidConfig,
    RequestTimedOut,
    WrongListener,
)
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.unit.sdk.test_grpc_transport import Server, ask


def certificate(
    name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a certificate for 127.0.0.1, signed by itself or by an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
    )
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256()), key


def pem(item: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    return item.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


async def ask_wrongly(endpoint: str, options: TlsOptions | None) -> BrokerUnreachable:
    """Return the error of a client that reaches the endpoint, but not as the server there requires."""
    transport = GrpcTransport(options)
    with pytest.raises(BrokerUnreachable) as refused:
        await ask(transport, endpoint, 30.0)
    await transport.close()
    return refused.value


async def test_what_a_tls_listener_requires_is_named() -> None:
    ca = certificate("ca")
    broker = certificate("b", ca)
    server = Server()
    await server.start(
        credentials=grpc.ssl_server_credentials(
            [(pem(broker[1]), pem(broker[0]))], pem(ca[0]), require_client_auth=True
        )
    )
    for options in (None, TlsOptions(ca=pem(ca[0]))):
        refused = await ask_wrongly(server.endpoint, options)
        assert "it may require TLS or a client certificate" in str(refused)
    await server.stop()


async def test_a_tls_listener_without_grpc_is_recognized(tmp_path: Path) -> None:
    """A Kafka listener with TLS, or a gateway. Before, a command waited for 10 s and Spark for 20 s."""
    ca = certificate("ca")
    broker = certificate("b", ca)
    chain = tmp_path / "b.pem"
    chain.write_bytes(pem(broker[1]) + pem(broker[0]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    server = await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    port = server.sockets[0].getsockname()[1]
    refused = await ask_wrongly(f"127.0.0.1:{port}", TlsOptions(ca=pem(ca[0])))
    assert isinstance(refused, WrongListener)
    assert "this address uses TLS, but not gRPC" in str(refused)
    server.close()


async def test_tls_checks_both_sides_and_takes_files_or_bytes(tmp_path: object) -> None:
    ca = certificate("ca")
    broker, client, stranger = certificate("b", ca), certificate("c", ca), certificate("s")
    server = Server()
    await server.start(
        credentials=grpc.ssl_server_credentials(
            [(pem(broker[1]), pem(broker[0]))], pem(ca[0]), require_client_auth=True
        )
    )
    ca_file = tmp_path / "ca.pem"  # type: ignore[operator]
    ca_file.write_bytes(pem(ca[0]))
    good = TlsOptions(ca=ca_file, cert=pem(client[0]), key=pem(client[1]))
    for options, is_welcome in (
        (good, True),
        (TlsOptions(ca=str(ca_file)), False),
        (TlsOptions(ca=pem(stranger[0]), cert=pem(client[0]), key=pem(client[1])), False),
        (TlsOptions(ca=pem(ca[0]), cert=pem(stranger[0]), key=pem(stranger[1])), False),
        (None, False),
    ):
        transport = GrpcTransport(options)
        if is_welcome:
            assert await ask(transport, server.endpoint) == "c"
        else:
            with pytest.raises((BrokerUnreachable, RequestTimedOut)):
                await ask(transport, server.endpoint, 3.0)
        await transport.close()
    await server.stop()


def test_half_a_pair_of_certificate_and_key_is_refused() -> None:
    with pytest.raises(ValueError, match="cert and key must be given together"):
        TlsOptions(cert=b"x")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "does not contain PEM"),
        (b"\x30\x82 der", "does not contain PEM"),
    ],
)
def test_a_tls_file_that_is_no_use_is_named_at_once(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfig, match=f"ca.*{reason}") as caught:
        Client("127.0.0.1:1", tls=TlsOptions(ca=path))
    assert content is not None or str(path) in str(caught.value)


async def test_a_tls_file_that_is_away_while_it_is_renewed_is_read_when_it_is_back(
    tmp_path: Path,
) -> None:
    ca = certificate("ca")
    broker = certificate("b", ca)
    server = Server()
    await server.start(credentials=grpc.ssl_server_credentials([(pem(broker[1]), pem(broker[0]))]))
    path = tmp_path / "ca.pem"
    path.write_bytes(pem(ca[0]))
    transport = GrpcTransport(TlsOptions(ca=path))
    cluster = Cluster([server.endpoint], transport)
    cluster.watch_topics(["t"])
    path.rename(tmp_path / "away")
    with pytest.raises(BrokersUnavailable, match=r"ca: cannot read .*ca\.pem"):
        await cluster.call_any(METADATA, pb.MetadataRequest(), timeout_s=0.3)
    with pytest.raises(BrokersUnavailable, match=r"ca: cannot read .*ca\.pem"):
        await cluster.wait_connected(0.3)
    (tmp_path / "away").rename(path)
    await cluster.call_any(METADATA, pb.MetadataRequest(), timeout_s=5)
    await cluster.wait_connected(5)
    await cluster.close()
    await server.stop()
