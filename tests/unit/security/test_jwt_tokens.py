"""Bearer tokens: which ones are accepted or refused, and how changed keys are loaded."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from odradek_runtime.jwt_tokens import (
    KEYS_MAX,
    JwksRefused,
    TokenRefused,
    TokenRules,
    TokenVerifier,
)
from tests.e2e.token_issuer import TokenIssuer


class Clock:
    """A clock in seconds that advances on request."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path / "jwks.json")


def rules(issuer: TokenIssuer, **more: Any) -> TokenRules:
    return TokenRules(
        **{"jwks": issuer.jwks, "issuer": issuer.name, "audience": issuer.audience, **more}
    )


@pytest.mark.parametrize("kid", ["rsa-1", "ec-1"])
def test_a_good_token_is_a_principal(issuer: TokenIssuer, kid: str) -> None:
    assert TokenVerifier(rules(issuer)).principal(issuer.token("alice", kid=kid)) == "User:alice"


def test_another_claim_may_name_the_user(issuer: TokenIssuer) -> None:
    verifier = TokenVerifier(rules(issuer, principal_claim="email"))
    assert verifier.principal(issuer.token("x", email="a@b")) == "User:a@b"
    with pytest.raises(TokenRefused):
        verifier.principal(issuer.token("x"))


def now(seconds: float) -> int:
    return int(time.time() + seconds)


BAD: dict[str, Callable[[TokenIssuer], str]] = {
    "expired": lambda i: i.token("alice", lifetime_s=-60),
    "without an end": lambda i: i.token("alice", exp=None),
    "not yet valid": lambda i: i.token("alice", nbf=now(60)),
    "of another issuer": lambda i: i.token("alice", iss="https://evil"),
    "of no issuer": lambda i: i.token("alice", iss=None),
    "for somebody else": lambda i: i.token("alice", aud="kafka"),
    "for nobody": lambda i: i.token("alice", aud=None),
    "of nobody": lambda i: i.token("alice", sub=None),
    "with an empty name": lambda i: i.token(""),
    "with a name of control characters": lambda i: i.token("a\nb"),
    "with a long name": lambda i: i.token("a" * 300),
    "unsigned": lambda i: jwt.encode(claims(i), "", algorithm="none", headers={"kid": "rsa-1"}),
    "signed by a secret that is the public key": lambda i: hmac_by_public_key(i),
    "with an unknown key": lambda i: jwt.encode(
        claims(i), i.keys["rsa-1"], algorithm="RS256", headers={"kid": "rsa-9"}
    ),
    "without a key's name": lambda i: jwt.encode(claims(i), i.keys["rsa-1"], algorithm="RS256"),
    "with a key's name that is a list": lambda i: crooked(i, {"alg": "RS256", "kid": ["rsa-1"]}),
    "signed by another key of that name": lambda i: jwt.encode(
        claims(i),
        rsa.generate_private_key(65537, 2048),
        algorithm="RS256",
        headers={"kid": "rsa-1"},
    ),
    "by an algorithm that is not allowed": lambda i: jwt.encode(
        claims(i), i.keys["rsa-1"], algorithm="PS256", headers={"kid": "rsa-1"}
    ),
    "by an algorithm of another kind of key": lambda i: crooked(
        i, {"alg": "ES256", "kid": "rsa-1"}
    ),
    "with a critical header": lambda i: jwt.encode(
        claims(i),
        i.keys["rsa-1"],
        algorithm="RS256",
        headers={"kid": "rsa-1", "crit": ["x"], "x": 1},
    ),
    "cut": lambda i: i.token("alice")[:-10],
    "changed": lambda i: changed(i.token("alice")),
    "empty": lambda i: "",
    "no token": lambda i: "a.b.c",
    "huge": lambda i: i.token("alice", padding="x" * 20_000),
    "not ascii": lambda i: "é.é.é",
}


def claims(issuer: TokenIssuer) -> dict[str, Any]:
    return {"sub": "alice", "iss": issuer.name, "aud": issuer.audience, "exp": now(300)}


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def crooked(issuer: TokenIssuer, header: dict[str, Any]) -> str:
    signature = issuer.token("alice").rpartition(".")[2]
    return f"{part(header)}.{part(claims(issuer))}.{signature}"


def changed(token: str) -> str:
    header, body, signature = token.split(".")
    padded = body + "=" * (-len(body) % 4)
    told = json.loads(base64.urlsafe_b64decode(padded)) | {"sub": "admin"}
    return f"{header}.{part(told)}.{signature}"


def hmac_by_public_key(issuer: TokenIssuer) -> str:
    import hashlib
    import hmac

    pem = (
        issuer.keys["rsa-1"]
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    signed = f"{part({'alg': 'HS256', 'kid': 'rsa-1'})}.{part(claims(issuer))}"
    digest = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


@pytest.mark.parametrize("kind", list(BAD))
def test_a_token_is_refused(issuer: TokenIssuer, kind: str) -> None:
    verifier = TokenVerifier(rules(issuer))
    token = BAD[kind](issuer)
    with pytest.raises(TokenRefused) as refused:
        verifier.principal(token)
    if token:
        assert token not in str(refused.value)


def test_clocks_may_differ_a_little(issuer: TokenIssuer) -> None:
    verifier = TokenVerifier(rules(issuer))
    assert verifier.principal(issuer.token("alice", lifetime_s=-10))
    assert verifier.principal(issuer.token("alice", nbf=now(10)))


def test_keys_are_read_again_when_the_file_changes(issuer: TokenIssuer) -> None:
    clock = Clock()
    verifier = TokenVerifier(rules(issuer), clock)
    old = issuer.token("alice")
    issuer.rotate("2")
    os.utime(issuer.jwks, ns=(1, 1))
    new = issuer.token("alice")
    with pytest.raises(TokenRefused):
        verifier.principal(new)  # not looked at for a second
    clock.now_s += 2
    assert verifier.principal(new) == "User:alice"
    with pytest.raises(TokenRefused):
        verifier.principal(old)


def test_a_file_that_is_broken_leaves_the_keys_that_there_were(
    issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    verifier = TokenVerifier(rules(issuer), clock)
    token = issuer.token("alice")
    for content in ("{", '{"keys": []}', "[]"):
        issuer.jwks.write_text(content)
        clock.now_s += 2
        assert verifier.principal(token) == "User:alice"
    issuer.jwks.unlink()
    clock.now_s += 2
    assert verifier.principal(token) == "User:alice"
    assert "Failed to reload the JWKS" in caplog.text


def test_only_public_signing_keys_count(issuer: TokenIssuer) -> None:
    good = issuer.public("rsa-1")
    private = json.loads(RSAAlgorithm.to_jwk(issuer.keys["rsa-1"]))
    small = rsa.generate_private_key(65537, 1024).public_key()
    edwards = ed25519.Ed25519PrivateKey.generate()
    for bad in (
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "hmac"},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": ""},
        {**private, "kid": "private"},
        {**json.loads(RSAAlgorithm.to_jwk(small)), "kid": "small"},
    ):
        issuer.write([bad])
        with pytest.raises(JwksRefused):
            TokenVerifier(rules(issuer))
        issuer.write([bad, good])
        assert TokenVerifier(rules(issuer)).principal(issuer.token("alice")) == "User:alice"
    issuer.write([{**json.loads(OKPAlgorithm.to_jwk(edwards.public_key())), "kid": "ed"}])
    signed = jwt.encode(claims(issuer), edwards, algorithm="EdDSA", headers={"kid": "ed"})
    assert TokenVerifier(rules(issuer)).principal(signed) == "User:alice"


def test_ignored_keys_are_logged(issuer: TokenIssuer, caplog: pytest.LogCaptureFixture) -> None:
    good = issuer.public("rsa-1")
    issuer.write(
        [{"kty": "RSA", "kid": "bad"}, *[{**good, "kid": f"k{n}"} for n in range(KEYS_MAX)]]
    )
    TokenVerifier(rules(issuer))
    assert len(caplog.records) == 1
    assert "Ignored malformed or unknown keys" in caplog.text
    caplog.clear()
    issuer.write([*[{**good, "kid": f"k{n}"} for n in range(KEYS_MAX)], good])
    verifier = TokenVerifier(rules(issuer))
    assert "Ignored keys at the end of the JWKS file" in caplog.text
    with pytest.raises(TokenRefused, match="'rsa-1', which is not in the JWKS file"):
        verifier.principal(issuer.token("alice"))


def test_a_key_that_declares_its_algorithm_is_for_that_one(issuer: TokenIssuer) -> None:
    issuer.write([{**issuer.public("rsa-1"), "alg": "RS512"}])
    with pytest.raises(TokenRefused, match="cannot be used with algorithm RS256"):
        TokenVerifier(rules(issuer)).principal(issuer.token("alice"))


def test_without_a_file_nothing_starts(tmp_path: Path, issuer: TokenIssuer) -> None:
    with pytest.raises(JwksRefused, match="cannot be read"):
        TokenVerifier(rules(issuer, jwks=tmp_path / "none"))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"keys":' * 100_000])
def test_a_file_that_is_nested_too_deeply_is_no_jwks(tmp_path: Path, text: str) -> None:
    jwks = tmp_path / "jwks.json"
    jwks.write_text(text)
    with pytest.raises(JwksRefused, match="is not a JWKS file"):
        TokenVerifier(TokenRules(jwks=jwks, issuer="i", audience="a"))
