"""SASL/OAUTHBEARER on Kafka's listeners accepts signed tokens, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.access.sasl import LoginFailed, SaslExchange
from odradek_protocol.kafka.messages import SaslAuthenticateResponse
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_runtime.jwt_tokens import TokenRules, TokenVerifier
from tests.e2e.token_issuer import TokenIssuer


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path / "jwks.json")


def exchange(issuer: TokenIssuer) -> SaslExchange:
    rules = TokenRules(jwks=issuer.jwks, issuer=issuer.name, audience=issuer.audience)
    made = SaslExchange(mechanisms=("OAUTHBEARER",), credentials=dict, tokens=TokenVerifier(rules))
    assert made.choose("OAUTHBEARER")
    return made


def first(token: str, header: str = "n,,", more: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {token}{more}\x01\x01".encode()


@pytest.mark.parametrize(
    ("header", "more"),
    [("n,,", ""), ("n,a=alice,", ""), ("n,,", "\x01host=x\x01port=9092")],
)
async def test_a_signed_token_is_a_login_until_it_ends(
    issuer: TokenIssuer, header: str, more: str
) -> None:
    made = exchange(issuer)
    assert await made.step(first(issuer.token("alice", lifetime_s=100), header, more)) == b""
    assert made.is_complete
    assert made.user == "alice"
    assert made.lifetime_ms is not None
    assert 100_000 < made.lifetime_ms <= 131_000  # with the leeway for clocks


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic YTpi\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b'{"alg":"none"}',
    ],
)
async def test_what_is_no_token_is_refused(issuer: TokenIssuer, message: bytes) -> None:
    made = exchange(issuer)
    with pytest.raises(LoginFailed):
        await made.step(message)
    assert not made.is_complete
    with pytest.raises(LoginFailed):
        await made.step(first(issuer.token("alice")))


async def test_a_token_of_somebody_else_is_refused(issuer: TokenIssuer) -> None:
    with pytest.raises(LoginFailed, match="another user than its token"):
        await exchange(issuer).step(first(issuer.token("alice"), "n,a=bob,"))


async def test_an_ended_token_is_refused(issuer: TokenIssuer) -> None:
    with pytest.raises(LoginFailed):
        await exchange(issuer).step(first(issuer.token("alice", lifetime_s=-60)))


async def test_another_user_cannot_go_on_on_the_connection(issuer: TokenIssuer) -> None:
    made = exchange(issuer)
    await made.step(first(issuer.token("alice")))
    assert made.choose("OAUTHBEARER")
    with pytest.raises(LoginFailed):
        await made.step(first(issuer.token("bob")))


@pytest.mark.parametrize("end_s", [1e300, 10**300], ids=["float", "integer"])
async def test_a_token_without_a_sensible_end_is_a_login_that_can_be_told(
    issuer: TokenIssuer, end_s: float
) -> None:
    made = exchange(issuer)
    assert await made.step(first(issuer.token("alice", exp=end_s))) == b""
    assert made.lifetime_ms is not None
    response = SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=made.lifetime_ms
    )
    assert encode_message(response, 1)
