"""How a client proves who it is and checks whom it talks to."""

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
    """TLS to the brokers. PEM files, or their contents as bytes.

    `ca` is whom to trust (None: what the machine trusts); `cert` and `key` are the client's own,
    for mTLS: both or none. `server_name` stands in for the endpoint's host when certificates are
    checked, for brokers behind a tunnel.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | bytes | None = None
    key: str | Path | bytes | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together: give both, or neither")

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(ca, key, cert) as bytes, files read now. Raises InvalidConfig for one that is no use."""
        return _pem("ca", self.ca), _pem("key", self.key), _pem("cert", self.cert)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslCredentials:
    """A user's name and password, or a token, for listeners that want a login.

    SCRAM proves the password without sending it; PLAIN sends it, and is refused without TLS.
    OAUTHBEARER sends what `token` returns, a signed JWT that names the user, and is refused without
    TLS too; `token` is called at every login, so that a new one is at hand when the old one ends. It
    must not wait.

    Raises:
        InvalidConfig: there is no such mechanism, or what it needs is missing.
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
                "a token goes with the mechanism OAUTHBEARER, and that with a token"
            )
        if self.token is not None:
            return
        if not self.username or not self.password:
            raise InvalidConfig("a login needs a user's name and a password")

    def __repr__(self) -> str:
        return (
            f"SaslCredentials(username={self.username!r}, mechanism={self.mechanism!r}, <hidden>)"
        )


def _pem(what: str, source: str | Path | bytes | None) -> bytes | None:
    if source is None:
        return None
    if isinstance(source, bytes):
        content, named = source, "what was given"
    else:
        try:
            content, named = Path(source).read_bytes(), str(source)
        except OSError as error:
            raise InvalidConfig(f"{what}: cannot read {source}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise InvalidConfig(f"{what}: {named} is no PEM")
    return content
