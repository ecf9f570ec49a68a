"""Who somebody is by the certificate of a TLS connection: Kafka's default principal, the whole DN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from odradek_broker.security.rights import ANONYMOUS

_SHORT: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_SPECIAL: Final = frozenset(',+"\\<>;=')


def principal_of_certificate(certificate: Mapping[str, Any] | None) -> str:
    """`User:` and the subject in the form of RFC 2253, as Java writes it; ANONYMOUS without one.

    `certificate` is what `ssl.SSLSocket.getpeercert` gives.
    """
    if not certificate:
        return ANONYMOUS
    names = [
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in relative)
        for relative in certificate.get("subject", ())
    ]
    return f"User:{','.join(reversed(names))}" if names else ANONYMOUS


def _escaped(value: str) -> str:
    escaped = "".join(f"\\{one}" if one in _SPECIAL else one for one in value)
    if escaped.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if escaped.endswith(" ") and len(escaped) > 1 else escaped
