"""A login as an unknown user looks like one with a wrong password: the same messages, rounds and salts, on every
broker.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from types import CodeType, FrameType

import pytest
from msgspec.structs import replace

from odradek_broker.access import sasl
from odradek_broker.access.sasl import LoginFailed, SaslExchange, credential_of
from odradek_protocol.metadata.records import ScramMechanism, UserScramCredential

Users = dict[tuple[str, ScramMechanism], UserScramCredential]


def users(count: int, *, iterations: int, kind: ScramMechanism = ScramMechanism.SHA_512) -> Users:
    name = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}[kind]
    return {
        (f"user-{number}", kind): credential_of(
            f"user-{number}",
            kind,
            salt=hashlib.sha256(str(number).encode()).digest(),
            salted_password=hashlib.new(name, str(number).encode()).digest(),
            iterations=iterations,
        )
        for number in range(count)
    }


async def server_first(known: Users, user: str) -> dict[str, str]:
    """Return the attributes of the first server message, except the nonce."""
    exchange = SaslExchange(mechanisms=("SCRAM-SHA-512",), credentials=lambda: known)
    exchange.choose("SCRAM-SHA-512")
    told = (await exchange.step(f"n,,n={user},r=abcdefghijklmnop".encode())).decode()
    found = dict(part.split("=", 1) for part in told.split(","))
    del found["r"]
    return found


@pytest.mark.parametrize("iterations", [4096, 8192])
async def test_rounds_and_salt_are_like_anothers(iterations: int) -> None:
    known = users(5, iterations=iterations)
    real = await server_first(known, "user-1")
    made_up = await server_first(known, "nobody")
    assert made_up.keys() == real.keys()
    assert made_up["i"] == real["i"] == str(iterations)
    assert len(made_up["s"]) == len(real["s"])


async def test_the_salt_is_the_same_again_and_on_another_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = users(5, iterations=4096)
    before = await server_first(known, "nobody")
    assert await server_first(known, "nobody") == before
    assert await server_first(known, "nobody-else") != before
    monkeypatch.setattr(sasl, "_SECRET", b"another process")
    assert await server_first(known, "nobody") == before


async def test_it_hardly_changes_when_users_come_and_go() -> None:
    few, more = users(50, iterations=4096), users(51, iterations=4096)
    changed = 0
    for number in range(200):
        name = f"nobody-{number}"
        changed += await server_first(few, name) != await server_first(more, name)
    assert changed < 20


async def test_a_plain_password_costs_as_many_rounds_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = users(3, iterations=8192)
    rounds: Counter[tuple[str, int]] = Counter()
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        rounds[name, iterations] += 1
        return real(name, password, salt, iterations)

    monkeypatch.setattr("hashlib.pbkdf2_hmac", counted)
    for user in ("user-1", "nobody"):
        exchange = SaslExchange(mechanisms=("PLAIN",), credentials=lambda: known)
        exchange.choose("PLAIN")
        with pytest.raises(LoginFailed, match="wrong password or unknown user"):
            await exchange.step(f"\0{user}\0wrong".encode())
    assert rounds == {("sha512", 8192): 2}


async def test_with_no_user_at_all_there_is_an_answer_too() -> None:
    assert (await server_first({}, "nobody"))["i"] == "4096"


class Watched(dict[tuple[str, ScramMechanism], UserScramCredential]):
    """Credentials that count how often all of them are read."""

    scans = 0

    def values(self):  # type: ignore[no-untyped-def]
        self.scans += 1
        return super().values()


async def test_neither_costs_more_the_more_users_there_are() -> None:
    """With 20,000 users an unknown name took 10 ms of the event loop and a known one nothing, so an
    attacker could tell them apart.
    """
    known = Watched(users(200, iterations=4096))
    for number in range(100):
        await server_first(known, f"nobody-{number}")
        await server_first(known, f"user-{number}")
    assert known.scans < 10


async def test_the_first_response_runs_the_same_code_for_both() -> None:
    """When only unknown users needed an imitation, it took 18 us more than a look-up, which reveals names on a LAN."""
    known = users(200, iterations=4096)

    async def calls(user: str) -> Counter[CodeType]:
        called: Counter[CodeType] = Counter()

        def count(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                called[frame.f_code] += 1

        exchange = SaslExchange(mechanisms=("SCRAM-SHA-512",), credentials=lambda: known)
        exchange.choose("SCRAM-SHA-512")
        sys.setprofile(count)
        try:
            await exchange.step(f"n,,n={user},r=abcdefghijklmnop".encode())
        finally:
            sys.setprofile(None)
        return called

    await calls("user-1")  # makes what is kept for all users
    assert await calls("user-2") == await calls("nobody")


async def test_users_that_went_are_imitated_no_longer() -> None:
    known = users(2, iterations=4096)
    known |= {key: replace(one, iterations=8192) for key, one in list(known.items())[:1]}
    names = [f"nobody-{number}" for number in range(50)]
    assert {(await server_first(known, name))["i"] for name in names} == {"4096", "8192"}
    del known[next(iter(known))]
    assert {(await server_first(known, name))["i"] for name in names} == {"4096"}
