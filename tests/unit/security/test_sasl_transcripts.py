"""SASL messages of any kind and in any order: no login succeeds without the password, and no
message raises an unexpected error.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from typing import Any, Final

import pytest
import scramp

from odradek_broker.access.sasl import SCRAM, LoginFailed, SaslExchange, credential_of
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential
from tests.unit.kafka import fake_broker
from tests.unit.kafka.wire_client import WireClient, listening

PASSWORDS: Final = {"alice": "secret", "mallory": "mine"}
OFFERED: Final = ("PLAIN", *SCRAM)
MOVES_MAX: Final = 8
HEADERS: Final = (
    *("n,,",) * 8,
    "y,,",
    "n,a=alice,",
    "n,a=mallory,",
    "p=tls-unique,,",
    "p=tls-server-end-point,,",
    "p=,,",
    "x,,",
    ",,",
    "n,",
    "",
)
NONCES: Final = ("nonce", "nonce", "nonce", "", "n" * 5_000, "a,b", "\0", "é", "=", "nonce\n")
NAMES: Final = (
    "alice",
    "mallory",
    "nobody",
    "",
    "al=2Cice",
    "al=ice",
    "\u00aa",
    "\ufeff",
    "a" * 600,
    "\0",
)
PROOFS: Final = ("", "AAAA", "====", "é", "A", base64.b64encode(bytes(32)).decode())
BINDINGS: Final = (
    "biws",
    "biws",
    "biws",
    "eSws",
    "cD10bHMtdW5pcXVlLCw=",
    "",
    "é",
    "====",
    "biws" * 500,
)


def credentials() -> dict[tuple[str, ScramMechanism], UserScramCredential]:
    made = {}
    for user, password in PASSWORDS.items():
        for mechanism, hash_name in zip(ScramMechanism, ("sha256", "sha512"), strict=True):
            salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), b"s" * 16, 4096)
            made[user, mechanism] = credential_of(
                user, mechanism, salt=b"s" * 16, salted_password=salted, iterations=4096
            )
    return made


CREDENTIALS: Final = credentials()


class Attacker:
    """Creates SASL tokens. It knows mallory's password, and sees what the server sends."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._first = "n=alice,r=nonce"
        self._nonce = "nonce"
        self._has_answer = False

    def mechanism(self) -> str:
        """Return the mechanism to choose in a SaslHandshake."""
        others = ("SCRAM-SHA-1", "GSSAPI", "OAUTHBEARER", "plain", "", "SCRAM-SHA-256\0")
        return self.draw.choice((*OFFERED, *OFFERED, *others))

    def token(self) -> bytes:
        """Return the next token, whatever was sent before."""
        # Most exchanges would end before their last message otherwise.
        likely = self._client_final if self._has_answer else self._client_first
        token = self.draw.choice((likely, likely, self._plain, self._client_final, self._noise))()
        if self.draw.random() < 0.15:
            token = token[: self.draw.randrange(len(token) + 1)]
        return token

    def received(self, answer: bytes) -> None:
        """Use the server's nonce in the next token."""
        text = answer.decode(errors="replace")
        nonce = text.partition("r=")[2].partition(",")[0]
        self._has_answer = bool(nonce)
        self._nonce = nonce or self._nonce

    def _plain(self) -> bytes:
        draw = self.draw
        user = draw.choice(NAMES)
        password = draw.choice(("wrong", "", "mine", "\0", "\ufffe", "s" * 600))
        if user == "mallory" and draw.random() < 0.5:
            password = PASSWORDS[user]
        return "\0".join((draw.choice(("", user, "alice")), user, password)).encode()

    def _client_first(self) -> bytes:
        draw = self.draw
        self._first = f"n={draw.choice(NAMES)},r={draw.choice(NONCES)}"
        extra = draw.choice(("", "", "", "", "", ",x=y", ",m=must", ",r=again", ",", ",,,"))
        swapped = ",".join(reversed(self._first.split(","))) if draw.random() < 0.1 else self._first
        return (draw.choice(HEADERS) + swapped + extra).encode()

    def _client_final(self) -> bytes:
        draw = self.draw
        parts = [
            f"c={draw.choice(BINDINGS)}",
            f"r={draw.choice((self._nonce, self._nonce, 'forged', ''))}",
            f"p={draw.choice(PROOFS)}",
        ]
        if draw.random() < 0.3:
            draw.shuffle(parts)
        if draw.random() < 0.3:
            parts.insert(draw.randrange(4), draw.choice(("x=y", "", "r=again", "noequals", "=")))
        if draw.random() < 0.2:
            parts.pop(draw.randrange(len(parts)))
        return ",".join(parts).encode()

    def _noise(self) -> bytes:
        draw = self.draw
        bearer = b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01"
        return draw.choice((b"", b"\0\0", b"\xff\xfe", draw.randbytes(40), bearer, b"," * 300))


async def log_in(step: Any, user: str, password: str, mechanism: str) -> None:
    """Run a complete SCRAM login, as an honest client does."""
    client = scramp.ScramClient([mechanism], user, password)
    client.set_server_first((await step(client.get_client_first().encode())).decode())
    await step(client.get_client_final().encode())


@pytest.mark.parametrize(
    "seeds", [range(1_000), pytest.param(range(100_000), marks=pytest.mark.long)]
)
async def test_no_exchange_proves_another_user(seeds: range) -> None:
    proved = 0
    for seed in seeds:
        attacker = Attacker(seed)
        exchange = SaslExchange(mechanisms=OFFERED, credentials=lambda: CREDENTIALS)
        exchange.choose(attacker.draw.choice(OFFERED))
        for _ in range(attacker.draw.randrange(1, MOVES_MAX)):
            kind = attacker.draw.random()
            if exchange.expects_token:
                kind = max(kind, 0.3)
            try:
                if kind < 0.35:
                    exchange.choose(attacker.mechanism())
                elif kind < 0.4:
                    mechanism = attacker.draw.choice(tuple(SCRAM))
                    if exchange.choose(mechanism):
                        user, password = attacker.draw.choice(
                            (("alice", "mine"), ("mallory", "mine"))
                        )
                        await log_in(exchange.step, user, password, mechanism)
                else:
                    attacker.received(await exchange.step(attacker.token()))
            except LoginFailed:
                assert not exchange.is_complete, seed
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
            assert exchange.user in (None, "mallory"), seed
            assert not exchange.is_complete or exchange.user == "mallory", seed
        proved += exchange.is_complete
    assert proved


@pytest.mark.parametrize("user", ["alice", "nobody"])
async def test_a_client_that_repeats_its_nonce_learns_the_reason(user: str) -> None:
    """As librdkafka before 2.6.1 does. The response does not reveal whether the user exists."""
    exchange = SaslExchange(mechanisms=OFFERED, credentials=lambda: CREDENTIALS)
    exchange.choose("SCRAM-SHA-256")
    client = scramp.ScramClient(["SCRAM-SHA-256"], user, PASSWORDS.get(user, "x"))
    client.set_server_first((await exchange.step(client.get_client_first().encode())).decode())
    final = client.get_client_final().replace("r=", f"r={client.c_nonce}", 1)
    with pytest.raises(LoginFailed, match=r"librdkafka before 2\.6\.1") as failed:
        await exchange.step(final.encode())
    assert "use a newer librdkafka, or sasl.mechanism=PLAIN over TLS" in failed.value.told
    assert not exchange.expects_token


async def test_the_limit_of_a_plain_user_name_counts_bytes() -> None:
    for user, reason in (("é" * 256, "unknown user"), ("é" * 256 + "e", "512 bytes")):
        exchange = SaslExchange(mechanisms=OFFERED, credentials=lambda: CREDENTIALS)
        exchange.choose("PLAIN")
        with pytest.raises(LoginFailed, match=reason):
            await exchange.step(f"\0{user}\0secret".encode())


class NeverLate:
    """Sends the response to a failed login at once."""

    def failed(self, *_: Any) -> int:
        return 0


@pytest.mark.parametrize("seeds", [range(250), pytest.param(range(20_000), marks=pytest.mark.long)])
async def test_no_connection_is_served_without_a_password(seeds: range) -> None:
    served: Services = fake_broker.services()
    served.image.scram.update(CREDENTIALS)
    served.budget.failed_logins = NeverLate()  # type: ignore[assignment]
    offered = {"sasl_mechanisms": OFFERED, "security_protocols": (("KAFKA", "SASL_PLAINTEXT"),)}
    async with listening(served, **offered) as server:
        for seed in seeds:
            client = await server.connect()
            attacker = Attacker(seed)
            try:
                if attacker.draw.random() < 0.9:
                    await handshake(client, attacker.draw.choice(tuple(SCRAM)), 1)
                for _ in range(attacker.draw.randrange(1, MOVES_MAX)):
                    await move(attacker, client)
                client.send(ApiKey.METADATA, 12)
                assert await client.is_closed(), seed
            except (ConnectionError, EOFError):
                pass
            finally:
                await client.close()
                server.clients.remove(client)
        assert server.listeners.counters.failures == 0


async def move(attacker: Attacker, client: WireClient) -> None:
    """Send one request or raw frame. Raises EOFError when the broker ends the connection."""
    draw = attacker.draw
    kind = draw.random()
    if kind < 0.2:
        await handshake(client, attacker.mechanism(), draw.choice((0, 1, 1, 1)))
    elif kind < 0.9:
        token = foreign_to_mallory(attacker)
        client.send(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
        _, body = await client.receive()
        attacker.received(body)
    else:
        client.send_frame(foreign_to_mallory(attacker) or b"x")
        await client.receive()


async def handshake(client: WireClient, mechanism: str, version: int) -> None:
    name = mechanism.encode()
    client.send(ApiKey.SASL_HANDSHAKE, version, struct.pack(">h", len(name)) + name)
    await client.receive()


def foreign_to_mallory(attacker: Attacker) -> bytes:
    """Return a token that no login accepts, not even mallory's."""
    token = attacker.token()
    return token.replace(b"mallory", b"alice")
