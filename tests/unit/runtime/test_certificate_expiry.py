"""A metric reports when each certificate expires."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from cryptography import x509

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_runtime.tls import CertificateExpiry, first_end_s

DAY_S = 86_400.0


def told(expiry: CertificateExpiry) -> dict[str, float]:
    (family,) = expiry.families()
    assert family.name == "odradek_x_certificate_expiry_timestamp_seconds"
    return {sample.labels["setting"]: sample.value for sample in family.samples}


def end_s(path: Path) -> float:
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()


def test_each_certificate_that_is_set_has_its_end(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    ca = authority.create(common_name="test", days=100)
    certificate, _ = authority.issue("broker-1", hosts=[], days=3)
    expiry = CertificateExpiry("odradek_x_", {"own": certificate, "ca": str(ca), "unset": ""})
    assert told(expiry) == {"own": end_s(certificate), "ca": end_s(ca)}
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    assert 2 * DAY_S < told(expiry)["own"] - now_s <= 3 * DAY_S


def test_a_renewed_certificate_shows_at_the_next_scrape(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.create(common_name="test", days=100)
    certificate, _ = authority.issue("broker-1", hosts=[], days=3)
    expiry = CertificateExpiry("odradek_x_", {"own": certificate})
    before_s = told(expiry)["own"]
    authority.renew("broker-1", days=30)
    os.utime(certificate, ns=(1, 1))  # another stamp, however coarse the file system's clock is
    assert told(expiry)["own"] == end_s(certificate) > before_s


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_what_cannot_be_read_is_told_as_ended(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.crt"
    if content is not None:
        path.write_bytes(content)
    assert told(CertificateExpiry("odradek_x_", {"own": path})) == {"own": 0.0}


def test_of_a_bundle_the_first_end_counts(tmp_path: Path) -> None:
    pems = []
    for name, days in (("a", 50), ("b", 5)):
        pems.append(CertificateAuthority(tmp_path / name).create(common_name=name, days=days))
    bundle = b"".join(path.read_bytes() for path in pems)
    assert first_end_s(bundle) == end_s(pems[1])
