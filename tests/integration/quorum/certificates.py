"""A temporary certificate authority for the tests of the quorum."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from odradek_metadata_quorum.settings import QuorumTls

_DAY = datetime.timedelta(days=1)


class CertificateAuthority:
    """A CA; `issue` writes the files of a node and returns their paths."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / "ca.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        common_name: str,
        *,
        names: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        expired: bool = False,
    ) -> QuorumTls:
        """Write a certificate with these subject alternative names; return the paths of its
        files.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        sans: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        sans += [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now - _DAY if expired else now + _DAY)
        )
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = f"{common_name}-{certificate.serial_number:x}"
        certificate_path = self._directory / f"{stem}.pem"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path = self._directory / f"{stem}.key"
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return QuorumTls(certificate_path=certificate_path, key_path=key_path, ca_path=self.path)

    def issue_controller(self, node_id: int) -> QuorumTls:
        """Write a controller's certificate as `odradek tls issue` does."""
        return self.issue(f"controller-{node_id}", names=(f"controller-{node_id}",))
