"""A process refuses certificate files that it cannot use before it opens a port, and names the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_runtime.listeners import ListenerAddress, port_refused
from odradek_runtime.tls import TlsFiles, TlsRefused, refuse_unusable_files


@pytest.fixture
def issued(tmp_path: Path) -> dict[str, str]:
    """Return a usable set of files."""
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=3)
    certificate, key = authority.issue("broker-1", hosts=[], days=3)
    return {"certificate": str(certificate), "key": str(key), "ca": str(ca)}


def test_files_that_belong_together_are_used(issued: dict[str, str]) -> None:
    files = TlsFiles.from_paths(**issued)
    assert files is not None
    assert str(files.key) == issued["key"]
    refuse_unusable_files(certificate="", key="", ca=issued["ca"])
    refuse_unusable_files(certificate="", key="", ca="")


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("certificate",), r"ssl\.certificate\.location=.* and ssl\.key\.location=.* its PEM key"),
        (("key",), r"ssl\.certificate\.location=.* and ssl\.key\.location=.* its PEM key"),
        (("certificate", "key"), r"ssl\.certificate\.location=.* and ssl\.key\.location="),
        (("ca",), r"^ssl\.ca\.location=.* must contain PEM certificates"),
    ],
    ids=" and ".join,
)
def test_a_file_that_is_not_pem_is_named(
    issued: dict[str, str], tmp_path: Path, names: tuple[str, ...], complaint: str
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage\n")
    with pytest.raises(TlsRefused, match=complaint):
        TlsFiles.from_paths(**{**issued, **dict.fromkeys(names, str(garbage))})


def test_a_key_of_another_certificate_is_refused(issued: dict[str, str], tmp_path: Path) -> None:
    _, other = CertificateAuthority(tmp_path).issue("broker-2", hosts=[], days=3)
    with pytest.raises(TlsRefused, match="key values mismatch"):
        TlsFiles.from_paths(**{**issued, "key": str(other)})


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(
    issued: dict[str, str], tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(Path(issued["key"]).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsRefused, match="without a password"):
        TlsFiles.from_paths(**{**issued, "key": str(encrypted)})


def test_the_gateways_settings_have_names_of_their_own(issued: dict[str, str]) -> None:
    with pytest.raises(TlsRefused, match=r"http\.ssl\.ca\.location=/none cannot be read"):
        refuse_unusable_files(**{**issued, "ca": "/none"}, prefix="http.ssl.")


@pytest.mark.parametrize(
    ("name", "setting"),
    [("HEALTH", "health.port"), ("METRICS", "metrics.port"), ("GRPC", "listeners")],
)
def test_a_port_in_use_is_reported_with_its_setting(name: str, setting: str) -> None:
    refused = port_refused(ListenerAddress(name=name, host="127.0.0.1", port=9))
    assert str(refused).endswith(f"set another port in {setting}")
