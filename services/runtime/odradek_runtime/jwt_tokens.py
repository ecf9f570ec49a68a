"""Verification of bearer tokens: JWTs (RFC 7519) that are signed by a key of a JWKS file.

Each token must have a valid signature by the key that its `kid` names. The algorithm must be allowed and must fit the
kind of that key. `none` and HMAC are never allowed: with HMAC, everybody who knows the public key could sign a token.
The claims `exp`, `nbf`, `iss`, `aud` and the claim with the user's name are checked, too.

The JWKS file is reloaded when it has changed, which is checked at most once a second. If the file cannot be read, the
previous keys stay in use. Keys are never fetched from a URL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odradek_runtime.budget.refusals import shortened
from odradek_runtime.logs import event_log

if TYPE_CHECKING:
    import jwt

ALGORITHMS: Final = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}
"""The signature algorithms that settings may allow, each with the key type (`kty`) that it needs."""
TOKEN_CHARACTERS_MAX: Final = 16 * 1024
NAME_CHARACTERS_MAX: Final = 256
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
LIFETIME_S_MAX: Final = 10 * 365 * 86_400.0
"""The longest remaining lifetime that `check` returns. A token's `exp` may be any number, but the lifetime of a session
must be limited.
"""
_LOOK_AGAIN_S: Final = 1.0
_log = event_log(__name__)


class TokenRefused(Exception):
    """The token is not valid. The message may be logged: it is short and does not contain the token's signature."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class JwksRefused(Exception):
    """The JWKS file cannot be used. The message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The requirements that a token must meet, and the JWKS file with the keys that may sign it.

    `leeway_s` is the clock difference that `exp` and `nbf` tolerate. `principal_claim` names the claim with the user's
    name.
    """

    jwks: Path
    issuer: str
    audience: str
    algorithms: Sequence[str] = ("RS256", "ES256", "EdDSA")
    principal_claim: str = "sub"
    leeway_s: float = 30.0


class TokenVerifier:
    """Verifies tokens with the keys of a JWKS file. The constructor raises JwksRefused if the file cannot be used."""

    def __init__(self, rules: TokenRules, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._clock_s = clock_s
        self._stamp = _stamp(rules.jwks)
        self._looked_at_s = clock_s()
        self._keys = _read(rules.jwks)

    def principal(self, token: str) -> str:
        """Return the token's principal: `User:` followed by the value of the principal claim. Raises TokenRefused."""
        return self.check(token)[0]

    def check(self, token: str) -> tuple[str, float]:
        """Return the token's principal and the seconds until the token expires. Raises TokenRefused."""
        rules = self._rules
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefused("the token is larger than 16 KiB")
        self._look()
        # Importing jwt and cryptography takes 60 ms at a start, and most processes check no tokens.
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header)
            claims = jwt.decode(
                token,
                key=key.key,
                algorithms=[header["alg"]],
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=rules.leeway_s,
                options={"require": ["exp", "iss", "aud", rules.principal_claim]},
            )
        except jwt.PyJWTError as error:
            raise TokenRefused(str(error)) from None
        except (ValueError, TypeError, OverflowError) as error:
            raise TokenRefused(f"the token is malformed: {error}") from None
        name = claims.get(rules.principal_claim)
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= NAME_CHARACTERS_MAX
            or not name.isprintable()
        ):
            raise TokenRefused(f"the token's claim {rules.principal_claim} is not a valid name")
        try:
            ends_s = float(claims["exp"])
        except OverflowError:
            raise TokenRefused("the token's claim exp is not a valid time") from None
        lifetime_s = ends_s + rules.leeway_s - time.time()
        return f"User:{name}", min(max(0.0, lifetime_s), LIFETIME_S_MAX)

    def _key(self, header: dict[str, Any]) -> jwt.PyJWK:
        algorithm, name = str(header.get("alg")), header.get("kid")
        if algorithm not in self._rules.algorithms:
            raise TokenRefused(f"the token's algorithm {algorithm!r} is not allowed")
        key = self._keys.get(name) if isinstance(name, str) else None
        if key is None:
            raise TokenRefused(f"the token names key {name!r}, which is not in the JWKS file")
        declared = key._jwk_data.get("alg")
        if key.key_type != ALGORITHMS[algorithm] or declared not in (None, algorithm):
            raise TokenRefused(
                f"key {name!r} of the JWKS file cannot be used with algorithm {algorithm}"
            )
        return key

    def _look(self) -> None:
        now_s = self._clock_s()
        if now_s - self._looked_at_s < _LOOK_AGAIN_S:
            return
        self._looked_at_s = now_s
        try:
            stamp = _stamp(self._rules.jwks)
            if stamp == self._stamp:
                return
            self._keys = _read(self._rules.jwks)
        except JwksRefused as refused:
            _log.warning(
                "Failed to reload the JWKS file; the previous keys stay in use", reason=str(refused)
            )
            return
        self._stamp = stamp
        _log.info("Reloaded the JWKS file", keys=len(self._keys))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise JwksRefused(f"{path} cannot be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_ino


def _read(path: Path) -> dict[str, jwt.PyJWK]:
    """Return the public signing keys of a JWKS file, by `kid`. Warnings are logged for ignored keys: keys that cannot
    be used, and keys after the first `KEYS_MAX`.
    """
    import jwt  # not at the top, because the import is slow: see TokenVerifier.check

    try:
        document = json.loads(path.read_text())
        key_set = jwt.PyJWKSet.from_dict(document)
    except OSError as error:
        raise JwksRefused(f"{path} cannot be read: {error.strerror}") from None
    except (
        jwt.PyJWTError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RecursionError,
    ) as error:
        raise JwksRefused(f"{path} is not a JWKS file: {error}") from None
    if unreadable := len(document["keys"]) - len(key_set.keys):
        _log.warning("Ignored malformed or unknown keys of the JWKS file", keys=unreadable)
    if len(key_set.keys) > KEYS_MAX:
        _log.warning(
            "Ignored keys at the end of the JWKS file, which has too many",
            keys=len(key_set.keys) - KEYS_MAX,
            keys_max=KEYS_MAX,
            first_kid=key_set.keys[KEYS_MAX].key_id,
        )
    keys: dict[str, jwt.PyJWK] = {}
    for key in key_set.keys[:KEYS_MAX]:
        problem = _problem(key)
        if problem:
            _log.warning("Ignored an unusable key of the JWKS file", kid=key.key_id, reason=problem)
        else:
            assert key.key_id is not None
            keys[key.key_id] = key
    if not keys:
        raise JwksRefused(f"{path} has no public signing key with a kid")
    return keys


def _problem(key: jwt.PyJWK) -> str:
    if not key.key_id:
        return "it has no kid"
    if key.key_type not in ALGORITHMS.values():
        return f"kty {key.key_type} is not for public signatures"
    if key.public_key_use not in (None, "sig"):
        return f"its use is not sig, but {key.public_key_use}"
    if "d" in key._jwk_data:
        return "it is a private key, which only the signer should have"
    bits = getattr(key.key, "key_size", None)
    if key.key_type == "RSA" and (bits is None or bits < RSA_BITS_MIN):
        return f"{bits} bits are too few for an RSA key"
    return ""
