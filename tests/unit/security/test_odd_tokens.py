"""Tokens drawn by a grammar: each is refused by the same error, or names a principal that it is
allowed to name.
"""

from __future__ import annotations

import base64
import json
import random
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from odradek_runtime.jwt_tokens import TokenRefused, TokenRules, TokenVerifier
from tests.e2e.token_issuer import TokenIssuer

_DEEP = b"[" * 3000 + b"]" * 3000
_TYPES: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    10**400,
    "",
    "x" * 5000,
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    {"a": {}},
]


class OddTokens:
    """Draws tokens from a seed; `is_good` says whether the last one is valid."""

    def __init__(self, seed: int, issuer: TokenIssuer) -> None:
        self._draw = random.Random(seed)
        self._issuer = issuer
        self.is_good = False

    def token(self) -> str:
        draw = self._draw
        header = {"alg": "RS256", "kid": "rsa-1", "typ": "JWT"}
        claims = {
            "iss": self._issuer.name,
            "aud": self._issuer.audience,
            "sub": "alice",
            "exp": int(time.time()) + 600,
        }
        changes = draw.choice((0, 1, 1, 2, 3))
        changed = sum(self._change(draw.choice((header, claims))) for _ in range(changes))
        parts = [_json(header), _json(claims)]
        is_raw = draw.random() < 0.1
        if is_raw:
            parts[draw.randrange(2)] = draw.choice(
                (b"", b"{", b"\xff", b"null", b"[]", b"1", _DEEP)
            )
        signed = b".".join(map(_base64, parts))
        signature, is_signed = self._signature(signed)
        token = (signed + b"." + _base64(signature)).decode()
        is_cut = draw.random() < 0.1
        if is_cut:
            token = draw.choice(
                (
                    token[: draw.randrange(len(token))],
                    token + ".",
                    "." + token,
                    token.replace(".", "..", 1),
                    token + "=",
                )
            )
        self.is_good = is_signed and not (changed or is_raw or is_cut)
        return token

    def _change(self, part: dict[str, Any]) -> bool:
        draw = self._draw
        name = draw.choice(
            [*part, "nbf", "iat", "crit", "jku", "jwk", "x5u", "x5c", "b64", "zip", "sub"]
        )
        values = [*_TYPES, "none", "None", "HS256", "ES256", "rsa-2", "ec-1", "../../etc/passwd"]
        before = part.get(name, part)
        part[name] = draw.choice(values)
        if draw.random() < 0.2:
            del part[name]
            return before is not part
        return True

    def _signature(self, signed: bytes) -> tuple[bytes, bool]:
        draw = self._draw
        if draw.random() < 0.7:
            algorithm = jwt.get_algorithm_by_name("RS256")
            return algorithm.sign(signed, self._issuer.keys["rsa-1"]), True
        return draw.choice((b"", bytes(256), b"\xff" * 5000)), False


def _json(part: dict[str, Any]) -> bytes:
    return json.dumps(part).encode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _check(verifier: TokenVerifier, token: str) -> tuple[str, float] | TokenRefused:
    try:
        return verifier.check(token)
    except TokenRefused as refused:
        return refused


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 1_500), pytest.param(2, 200_000, marks=pytest.mark.long)]
)
@pytest.mark.timeout(1800)
def test_odd_tokens_are_refused(seed: int, count: int, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "jwks.json")
    verifier = TokenVerifier(
        TokenRules(jwks=issuer.jwks, issuer=issuer.name, audience=issuer.audience)
    )
    tokens = OddTokens(seed, issuer)
    good = refused = 0
    for _ in range(count):
        token = tokens.token()
        outcome = _check(verifier, token)
        if isinstance(outcome, TokenRefused):
            refused += 1
            assert not tokens.is_good, (token, outcome)
            assert len(str(outcome)) < 300
            continue
        name, lifetime_s = outcome
        good += 1
        assert name == "User:alice" or tokens.is_good is False
        assert 0 <= lifetime_s < float("inf"), token
        head, claims, _ = token.rstrip("=").split(".")
        assert json.loads(base64.urlsafe_b64decode(head + "=="))["alg"] == "RS256"
        assert json.loads(base64.urlsafe_b64decode(claims + "=="))["iss"] == issuer.name
    assert good > count // 20
    assert refused > count // 4
