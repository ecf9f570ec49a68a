"""Certificates of the SDK's authority: names in the subject alternative name, private keys, and
renewal with the same names.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from odradek.cli.certificate_authority import CertificateAuthority, CertificateAuthorityError
from odradek.cli.storage import tls_app


def names_in(path: Path) -> tuple[set[str], set[str]]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(a) for a in names.get_values_for_type(x509.IPAddress)}
    return set(names.get_values_for_type(x509.DNSName)), addresses


def test_a_certificate_carries_identity_and_hosts(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    certificate, key = authority.issue("broker-1", hosts=["host1", "127.0.0.1"], days=1)
    assert names_in(certificate) == ({"broker-1", "host1"}, {"127.0.0.1"})
    assert key.stat().st_mode & 0o077 == 0
    issued = x509.load_pem_x509_certificate(certificate.read_bytes())
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    issued.verify_directly_issued_by(ca)


def test_renewal_keeps_the_names_and_changes_the_key(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    certificate, key = authority.issue("controller-2", hosts=["c2", "10.0.0.1"], days=1)
    before, old_key = names_in(certificate), key.read_bytes()
    authority.renew("controller-2", days=1)
    assert names_in(certificate) == before
    assert key.read_bytes() != old_key


def test_certificates_pass_strict_verification(tmp_path: Path) -> None:
    """From Python 3.13 on, `ssl.create_default_context` is strict: it requires the key identifiers
    of RFC 5280.
    """
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    certificate, key = authority.issue("gateway-1", hosts=[], days=1)
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="gateway-1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def test_an_authority_is_never_replaced(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    with pytest.raises(CertificateAuthorityError, match="already has an authority"):
        authority.create(common_name="other", days=2)


@pytest.mark.parametrize("name", ["../evil", "", "ca", "."])
def test_names_stay_within_the_directory(tmp_path: Path, name: str) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    with pytest.raises(CertificateAuthorityError):
        authority.issue(name, hosts=(), days=1)


def test_what_is_missing_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CertificateAuthorityError, match="odradek tls init"):
        CertificateAuthority(tmp_path).issue("broker-1", hosts=(), days=1)
    with pytest.raises(CertificateAuthorityError, match="odradek tls issue"):
        CertificateAuthority(tmp_path).renew("broker-1", days=1)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("issue", "n" * 65), "NAME"),
        (("issue", "müller"), "NAME"),
        (("issue", "a\0b"), "NAME"),
        (("issue", ""), "NAME"),
        (("issue", "n", "--host", "müller.example"), "--host"),
        (("issue", "n", "--host", ""), "--host"),
        (("issue", "n", "--days", "99999999"), "--days"),
        (("renew", "n", "--days", "99999999"), "--days"),
        (("init", "--days", "99999999"), "--days"),
        (("init", "--common-name", "n" * 65), "--common-name"),
        (("init", "--common-name", ""), "--common-name"),
    ],
)
def test_what_no_certificate_can_have_is_refused_by_its_option(
    tmp_path: Path, words: tuple[str, ...], option: str
) -> None:
    CertificateAuthority(tmp_path / "tls").create(common_name="test", days=2)
    directory = tmp_path / ("new" if words[0] == "init" else "tls")
    result = CliRunner().invoke(tls_app, [*words, "--dir", str(directory)])
    assert result.exit_code == 2, result.output
    assert option in result.stderr
    assert not list(tmp_path.glob("*/n*"))


def test_the_longest_name_and_time_are_accepted(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=2)
    words = ["issue", "n" * 64, "--days", "36500", "--dir", str(tmp_path)]
    assert CliRunner().invoke(tls_app, words).exit_code == 0
    with pytest.raises(CertificateAuthorityError, match="at most 64"):
        authority.issue("n" * 65, hosts=(), days=1)
