"""The settings of TLS, authentication and limits on the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek_runtime.jwt_tokens import ALGORITHMS
from odradek_runtime.listeners import is_loopback
from odradek_runtime.settings import SettingsError, setting
from odradek_runtime.tls import CLIENT_AUTH

BEARER: Final = "bearer"
BASIC: Final = "basic"
MTLS: Final = "mtls"
_METHODS: Final = (BEARER, BASIC, MTLS)
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


def _principals(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, (part.strip() for part in text.split(";"))))
    for one in found:
        if not one.startswith("User:"):
            raise ValueError(f"{one!r} is not User:NAME")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Part of a gateway's settings."""

    http_ssl_certificate: str = setting(
        "http.ssl.certificate.location",
        "Certificate of the HTTP port, PEM; none: no TLS.",
        default="",
    )
    http_ssl_key: str = setting("http.ssl.key.location", "Its key, PEM.", default="")
    http_ssl_ca: str = setting(
        "http.ssl.ca.location",
        "Authority that clients' and other gateways' certificates come from, PEM.",
        default="",
    )
    http_ssl_client_auth: str = setting(
        "http.ssl.client.auth",
        "Whether clients of the HTTP port show a certificate.",
        default="none",
        choices=CLIENT_AUTH,
    )
    authentication_methods: tuple[str, ...] = setting(
        "authentication.methods",
        "How callers say who they are: bearer, basic, mtls. None: nobody is asked, and the gateway acts"
        " as itself.",
        default=(),
    )
    jwks: str = setting(
        "jwt.jwks.location", "Keys that sign bearer tokens: a JWKS file.", default=""
    )
    jwt_issuer: str = setting(
        "jwt.issuer", "Who must have issued a bearer token (iss).", default=""
    )
    jwt_audience: str = setting("jwt.audience", "Whom it must be meant for (aud).", default="")
    jwt_algorithms: tuple[str, ...] = setting(
        "jwt.algorithms",
        f"Signatures that are taken, of {', '.join(ALGORITHMS)}.",
        default=("RS256", "ES256", "EdDSA"),
    )
    jwt_principal_claim: str = setting(
        "jwt.principal.claim", "The claim that names the user.", default="sub"
    )
    jwt_leeway_ms: int = setting(
        "jwt.leeway.ms", "How far clocks may differ.", default=30_000, unit="ms", minimum=0
    )
    basic_mechanism: str = setting(
        "basic.sasl.mechanism",
        "How a name and password are proved to a broker.",
        default="SCRAM-SHA-512",
        choices=_MECHANISMS,
    )
    basic_cache_ms: int = setting(
        "basic.cache.ms",
        "How long a password that was proved needs no proof: so long a deleted user may still come in.",
        default=5_000,
        unit="ms",
        minimum=0,
        maximum=600_000,
    )
    delegation_principals: tuple[str, ...] = setting(
        "delegation.principals",
        "Principals of the other gateways' certificates, which may pass a caller's request on, separated"
        " by semicolons; with more than one gateway and TLS, needed.",
        default=(),
        parse=_principals,
    )
    callers_max: int = setting(
        "callers.max",
        "Callers that the gateway keeps streams to the brokers for; the longest idle one goes.",
        default=1_000,
        minimum=1,
    )
    requests_per_second_max: int = setting(
        "requests.per.second.max",
        "Requests a second of one caller, with bursts of ten times as many; more are answered 429. 0: any"
        " number.",
        default=0,
        minimum=0,
    )
    failed_logins_per_minute_max: int = setting(
        "failed.logins.per.minute.max",
        "Failed logins a minute from one address; then it is answered 429 unheard.",
        default=60,
        minimum=1,
    )
    forwarded_allow_ips: str = setting(
        "forwarded.allow.ips",
        "Addresses of proxies whose X-Forwarded-For is believed, separated by commas.",
        default="",
    )

    def check_auth(self, *, shows_certificate: bool) -> None:
        """Raise SettingsError for what single settings cannot show."""
        methods = set(self.authentication_methods)
        if strange := methods - set(_METHODS):
            raise SettingsError(
                f"authentication.methods names {', '.join(sorted(strange))}; there are"
                f" {', '.join(_METHODS)}"
            )
        if strange := set(self.jwt_algorithms) - ALGORITHMS.keys():
            raise SettingsError(
                f"jwt.algorithms names {', '.join(sorted(strange))}; there are {', '.join(ALGORITHMS)}"
            )
        if bool(self.http_ssl_certificate) != bool(self.http_ssl_key):
            raise SettingsError(
                "http.ssl.certificate.location and http.ssl.key.location go together"
            )
        if self.http_ssl_client_auth != "none" and not self.http_ssl_ca:
            raise SettingsError("http.ssl.client.auth needs http.ssl.ca.location")
        if self.http_ssl_client_auth != "none" and not self.http_ssl_certificate:
            raise SettingsError("http.ssl.client.auth needs http.ssl.certificate.location")
        if MTLS in methods and self.http_ssl_client_auth == "none":
            raise SettingsError("authentication.methods=mtls needs http.ssl.client.auth")
        if BEARER in methods:
            for name, value in (
                ("jwt.jwks.location", self.jwks),
                ("jwt.issuer", self.jwt_issuer),
                ("jwt.audience", self.jwt_audience),
            ):
                if not value:
                    raise SettingsError(f"authentication.methods=bearer needs {name}")
        if methods and not shows_certificate:
            raise SettingsError(
                "authentication.methods needs ssl.certificate.location: brokers let a gateway speak"
                " for its callers by its certificate only (delegation.principals)"
            )

    def refuse_open(self, host: str, *, insecure: bool) -> None:
        """Raise SettingsError for a port beyond loopback without TLS or without authentication."""
        if insecure or is_loopback(host):
            return
        for missing, way in (
            (not self.http_ssl_certificate, "http.ssl.certificate.location"),
            (not self.authentication_methods, "authentication.methods"),
        ):
            if missing:
                raise SettingsError(
                    f"the HTTP port on {host} is reachable from other machines: set {way}, listen on"
                    f" 127.0.0.1, or accept that everybody may read and write with --insecure"
                )

    @property
    def http_tls_paths(self) -> tuple[Path, Path, Path]:
        """Certificate, key and CA; the CA is only read where clients show certificates."""
        certificate = Path(self.http_ssl_certificate)
        ca = Path(self.http_ssl_ca) if self.http_ssl_ca else certificate
        return certificate, Path(self.http_ssl_key), ca
