"""TLS options and login credentials of a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odradek.errors import InvalidConfig

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MECHANISMS: Final = (*SCRAM, PLAIN, OAUTHBEARER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS options of the connections to brokers. Each of `ca`, `cert` and `key` is the path of a PEM file, or its
    content.

    `ca` has the trusted certificate authorities (None: those of the operating system). `cert` and `key` authenticate
    the client (mTLS); give both or neither. `server_name` replaces the endpoint's host name when a broker's certificate
    is verified, for brokers behind a tunnel.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | bytes | None = None
    key: str | Path | bytes | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key must be given together")

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return (ca, key, cert) as bytes. The files are read at each call. Raises InvalidConfig for a file that cannot
        be used.
        """
        return _pem("ca", self.ca), _pem("key", self.key), _pem("cert", self.cert)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslCredentials:
    """A user name and password, or a token, for listeners that require a login.

    SCRAM proves that the client knows the password without sending it. PLAIN sends the password, and OAUTHBEARER sends
    the result of `token`, a signed JWT that names the user; both are refused without TLS. `token` is called at every
    login, so that it can return a new token before the old one expires. It must not block.

    Raises:
        InvalidConfig: the mechanism is unknown, or a required argument is missing.
    """

    username: str = ""
    password: str = ""
    mechanism: str = "SCRAM-SHA-512"
    token: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise InvalidConfig(
                f"mechanism {self.mechanism!r} is not known", hint=f"use {', '.join(MECHANISMS)}"
            )
        if (self.mechanism == OAUTHBEARER) != (self.token is not None):
            raise InvalidConfig(
                "OAUTHBEARER needs the argument token, which no other mechanism accepts"
            )
        if self.token is not None:
            return
        if not self.username or not self.password:
            raise InvalidConfig("a login needs a user name and a password")

    def __repr__(self) -> str:
        return (
            f"SaslCredentials(username={self.username!r}, mechanism={self.mechanism!r}, <hidden>)"
        )


def _pem(what: str, source: str | Path | bytes | None) -> bytes | None:
    if source is None:
        return None
    if isinstance(source, bytes):
        content, named = source, "the given bytes"
    else:
        try:
            content, named = Path(source).read_bytes(), str(source)
        except OSError as error:
            raise InvalidConfig(f"{what}: cannot read {source}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise InvalidConfig(f"{what}: {named} does not contain PEM")
    return content
