"""Who somebody is by a certificate: Kafka's default principal, the whole DN as RFC 4514 writes it.

One function for every listener, so that a certificate is the same principal over Kafka's protocol,
gRPC and HTTP.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"


@lru_cache(maxsize=1024)
def principal_of_certificate(certificate: bytes | None) -> str:
    """`User:` and the subject, as `User:CN=alice,O=Acme`; ANONYMOUS without one. PEM or DER.

    Raises:
        ValueError: the bytes are no certificate.
    """
    if not certificate:
        return ANONYMOUS
    from cryptography import x509  # only where certificates are

    is_pem = certificate.lstrip().startswith(b"-----")
    load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
    subject = load(certificate).subject.rfc4514_string()
    return f"User:{subject}" if subject else ANONYMOUS
