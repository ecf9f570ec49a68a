"""TLS on the Kafka listener: principals from certificates, and PLAIN only over TLS."""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_broker.access.authorizer import AclAuthorizer
from odradek_broker.access.sasl import credential_of
from odradek_protocol.access import Operation
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ScramMechanism
from odradek_runtime.tls import TlsFiles, principal_of_certificate
from tests.unit.kafka import fake_broker
from tests.unit.kafka.requests_to_everything import cluster
from tests.unit.kafka.wire_client import WireClient, listening
from tests.unit.security.acl_entries import entries_for


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, TlsFiles]:
    authority = CertificateAuthority(tmp_path / "ca")
    ca = authority.create(common_name="test", days=1)
    issued = {}
    for name in ("broker-1", "client-7"):
        certificate, key = authority.issue(name, hosts=["127.0.0.1"], days=1)
        issued[name] = TlsFiles(certificate=certificate, key=key, ca=ca)
    return issued


def context(files: TlsFiles, *, shows_certificate: bool) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files.ca))
    if shows_certificate:
        made.load_cert_chain(files.certificate, files.key)
    return made


async def may_unregister(client: WireClient) -> bool:
    client.send(ApiKey.UNREGISTER_BROKER, 0)
    told = messages.UnregisterBrokerResponse.decode((await client.receive())[1][1:], version=0)
    assert told.error_code in (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return bool(told.error_code == ErrorCode.NONE)


async def test_a_certificate_is_a_principal(tls: dict[str, TlsFiles]) -> None:
    paths = tls["client-7"]
    principal = principal_of_certificate(paths.certificate.read_bytes())
    assert principal == "User:CN=client-7"
    authorizer = AclAuthorizer([principal])
    async with listening(
        fake_broker.services(authorizer),
        tls["broker-1"],
        ssl_certificate="set",
        ssl_client_auth="required",
    ) as server:
        client = await server.connect(ssl_context=context(paths, shows_certificate=True))
        assert await may_unregister(client)
        stranger = None
        try:
            stranger = await server.connect(ssl_context=context(paths, shows_certificate=False))
            stranger.send(ApiKey.API_VERSIONS, 3)
            assert await stranger.is_closed()
        except ssl.SSLError:
            pass  # refused within the handshake


async def test_plain_within_tls(tls: dict[str, TlsFiles]) -> None:
    authorizer = AclAuthorizer()
    authorizer.entries_changed(entries_for("User:alice", cluster(Operation.ALTER)))
    served = fake_broker.services(authorizer)
    salted = hashlib.pbkdf2_hmac("sha512", b"secret", b"s" * 16, 4096)
    served.image.scram["alice", ScramMechanism.SHA_512] = credential_of(
        "alice", ScramMechanism.SHA_512, salt=b"s" * 16, salted_password=salted, iterations=4096
    )
    async with listening(
        served, tls["broker-1"], ssl_certificate="set", sasl_mechanisms=("PLAIN",)
    ) as server:

        async def log_in(token: bytes) -> tuple[WireClient, Any]:
            client = await server.connect(
                ssl_context=context(tls["client-7"], shows_certificate=False)
            )
            client.send(ApiKey.SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN")
            assert (await client.receive())[1][:2] == b"\0\0"
            client.send(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
            _, body = await client.receive()
            return client, messages.SaslAuthenticateResponse.decode(body, version=1)

        client, told = await log_in(b"\0alice\0secret")
        assert told.error_code == ErrorCode.NONE
        assert await may_unregister(client)
        for wrong in (
            b"\0alice\0wrong",
            b"\0nobody\0secret",
            b"bob\0alice\0secret",
            b"\0alice",
            b"\xff",
        ):
            client, told = await log_in(wrong)
            assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, wrong
            assert await client.is_closed()


def renew(files: TlsFiles, folder: Path) -> None:
    authority = CertificateAuthority(folder / "ca")
    certificate, key = authority.issue("broker-2", hosts=["127.0.0.1"], days=1)
    for fresh, path in ((certificate, files.certificate), (key, files.key)):
        path.write_bytes(fresh.read_bytes())
        os.utime(path, ns=(1, 1))  # another time, whatever the clock's grain


async def test_a_renewed_certificate_is_shown_to_who_comes_next(
    tls: dict[str, TlsFiles], tmp_path: Path
) -> None:
    def serial(client: WireClient) -> str:
        shown: dict[str, Any] = client.writer.get_extra_info("peercert")
        return str(shown["serialNumber"])

    async with listening(None, tls["broker-1"], ssl_certificate="set") as server:
        trust = context(tls["client-7"], shows_certificate=False)
        before = await server.connect(ssl_context=trust)
        renew(tls["broker-1"], tmp_path)
        after = await server.connect(ssl_context=trust)
        assert serial(after) != serial(before)
        for client in (before, after):
            client.send(ApiKey.API_VERSIONS, 3)
            await client.receive()


@pytest.mark.parametrize(
    ("attributes", "principal"),
    [
        ([(NameOID.COUNTRY_NAME, "DE"), (NameOID.COMMON_NAME, "alice")], "User:CN=alice,C=DE"),
        ([(NameOID.COMMON_NAME, "a,b")], "User:CN=a\\,b"),
        ([], "User:ANONYMOUS"),
    ],
)
def test_a_distinguished_name_reads_as_java_writes_it(
    attributes: list[tuple[x509.ObjectIdentifier, str]], principal: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        assert principal_of_certificate(made.public_bytes(encoding)) == principal
    assert principal_of_certificate(None) == "User:ANONYMOUS"
