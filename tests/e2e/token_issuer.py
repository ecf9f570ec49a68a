"""Signs bearer tokens, and writes the JWKS file with its public key."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

_RSA_BITS: Final = 2048


class TokenIssuer:
    """Issues tokens with one RSA key, `rsa-1`, and one EC key, `ec-1`; `rotate` replaces them."""

    name = "https://issuer.test"
    audience = "odradek"

    def __init__(self, jwks: Path) -> None:
        self.jwks = jwks
        self.keys: dict[str, Any] = {}
        self.rotate("1")

    def rotate(self, suffix: str) -> None:
        """Replace the keys, and write a JWKS file with only the new ones."""
        self.keys = {
            f"rsa-{suffix}": rsa.generate_private_key(65537, _RSA_BITS),
            f"ec-{suffix}": ec.generate_private_key(ec.SECP256R1()),
        }
        self.write([self.public(kid) for kid in self.keys])

    def public(self, kid: str) -> dict[str, Any]:
        """Return a public key in the form of the JWKS file."""
        key = self.keys[kid].public_key()
        algorithm = RSAAlgorithm if kid.startswith("rsa") else ECAlgorithm
        return {**json.loads(algorithm.to_jwk(key)), "kid": kid, "use": "sig"}

    def write(self, keys: list[dict[str, Any]]) -> None:
        """Replace the file in one step, as Kubernetes changes a mounted secret."""
        scratch = self.jwks.with_suffix(".new")
        scratch.write_text(json.dumps({"keys": keys}))
        scratch.replace(self.jwks)

    def token(self, subject: str, *, kid: str = "", lifetime_s: int = 300, **claims: Any) -> str:
        """Return a token that is signed by the key `kid`, or by the first key."""
        kid = kid or next(iter(self.keys))
        now_s = int(time.time())
        body = {
            "sub": subject,
            "iss": self.name,
            "aud": self.audience,
            "exp": now_s + lifetime_s,
            **claims,
        }
        algorithm = "RS256" if kid.startswith("rsa") else "ES256"
        payload = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(payload, self.keys[kid], algorithm=algorithm, headers={"kid": kid})
