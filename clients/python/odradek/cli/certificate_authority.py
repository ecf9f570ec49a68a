"""A certificate authority for one cluster: one key that signs the certificates of the cluster's nodes and clients.

The subject alternative names of a node's certificate contain the identity of the node (`broker-1`, `controller-2`) as a
DNS name, which other nodes verify. They also contain the host names and addresses that clients connect to. Keys are on
curve P-256, and key files have mode 0600.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A new certificate must already be valid on hosts whose clocks are behind.
_BACKDATED = datetime.timedelta(minutes=5)
NAME_LENGTH_MAX = 64
"""The most characters of a common name (ub-common-name of RFC 5280)."""


def is_common_name(name: str) -> bool:
    """Return whether a certificate can have this name, as its common name and as a DNS name."""
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isascii() and name.isprintable()


class CertificateAuthorityError(RuntimeError):
    """The directory has no authority, already has one, or does not have the certificate to renew; or the name of a
    certificate is not allowed.
    """


class CertificateAuthority:
    """A certificate authority, stored in a directory as `ca.crt` and `ca.key`. Issued certificates and keys are stored
    in the same directory as `NAME.crt` and `NAME.key`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._certificate_path = directory / "ca.crt"
        self._key_path = directory / "ca.key"

    def create(self, *, common_name: str, days: int) -> Path:
        """Create a new authority and return the path of its certificate. Raises CertificateAuthorityError if the
        directory has an authority, because nodes would not trust certificates that a new authority signs.
        """
        if self._key_path.exists():
            raise CertificateAuthorityError(
                f"{self.directory} already has an authority: use it to issue certificates, or choose another --dir"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            _unsigned(name, name, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_key(self._key_path, key)
        self._certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return self._certificate_path

    def issue(self, name: str, *, hosts: Sequence[str], days: int) -> tuple[Path, Path]:
        """Issue a certificate for a node or client, and return the paths of the certificate and its key. An older
        certificate with the same name is replaced.
        """
        if "/" in name or name in ("", ".", "..", "ca") or not is_common_name(name):
            raise CertificateAuthorityError(
                f"{name!r} cannot be the name of a certificate: choose a name of at most {NAME_LENGTH_MAX} printable"
                " ASCII characters, without /, except ca, . and .."
            )
        authority, authority_key = self._load()
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(name)]
        for host in hosts:
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                alternatives.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _unsigned(subject, authority.subject, key.public_key(), days)
            .add_extension(_authority_key_identifier(authority), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        certificate_path = self.directory / f"{name}.crt"
        key_path = self.directory / f"{name}.key"
        _write_key(key_path, key)
        _replace(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return certificate_path, key_path

    def renew(self, name: str, *, days: int) -> tuple[Path, Path]:
        """Issue a new certificate and key with the same subject alternative names as the existing certificate, and
        return the paths of both. Running processes load the new files without a restart.
        """
        path = self.directory / f"{name}.crt"
        if not path.exists():
            raise CertificateAuthorityError(
                f"{path} does not exist: create it with `odradek tls issue {name}`"
            )
        old = x509.load_pem_x509_certificate(path.read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [
            *(n for n in names.get_values_for_type(x509.DNSName) if n != name),
            *(str(a) for a in names.get_values_for_type(x509.IPAddress)),
        ]
        return self.issue(name, hosts=hosts, days=days)

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        if not self._key_path.exists():
            raise CertificateAuthorityError(
                f"{self.directory} has no authority: create one with `odradek tls init --dir {self.directory}`"
            )
        key = serialization.load_pem_private_key(self._key_path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "ca.key is not an EC key"
        return x509.load_pem_x509_certificate(self._certificate_path.read_bytes()), key


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _authority_key_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier of the authority's key (RFC 5280). Strict verification, which is the default of Python
    3.13, requires it in certificates.
    """
    public_key = authority.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey), "the authority's key is not an EC key"
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _replace(path, pem, 0o600)


def _replace(path: Path, content: bytes, mode: int) -> None:
    scratch = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
