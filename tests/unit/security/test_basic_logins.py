"""HTTP Basic credentials: a broker checks them, the gateway caches the result for a short time, and
never stores passwords.
"""

from __future__ import annotations

import asyncio

import pytest

from odradek.cluster.grpc_transport import GrpcTransport
from odradek.errors import AuthenticationFailed, BrokersUnavailable
from odradek_gateway.auth import basic_logins
from odradek_gateway.auth.basic_logins import BasicLogins
from tests.unit.security.login_server import LoginServer, login_server


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def logins(transport: GrpcTransport, server: LoginServer, clock: Clock) -> BasicLogins:
    return BasicLogins(
        transport,
        [server.endpoint],
        mechanism="SCRAM-SHA-512",
        cache_ms=30_000,
        clock_s=clock,
    )


async def test_one_proof_serves_all_who_come_with_the_same_pair() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport, clock = GrpcTransport(), Clock()
        asked = logins(transport, server, clock)
        who = await asyncio.gather(*(asked.principal("alice", "secret") for _ in range(20)))
        assert set(who) == {"User:alice"}
        assert len(server.sessions) == 1
        clock.now_s = 29
        await asked.principal("alice", "secret")
        assert len(server.sessions) == 1
        clock.now_s = 31
        await asked.principal("alice", "secret")
        assert len(server.sessions) == 2
        await transport.close()


async def test_a_deleted_user_is_out_when_the_cache_is() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport, clock = GrpcTransport(), Clock()
        asked = logins(transport, server, clock)
        await asked.principal("alice", "secret")
        server.users.clear()
        await asked.principal("alice", "secret")
        clock.now_s = 31
        with pytest.raises(AuthenticationFailed):
            await asked.principal("alice", "secret")
        await transport.close()


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong"), ("bob", "secret"), ("alices", "ecret"), ("alice", "\x00")],
)
async def test_wrong_pairs_are_refused_however_often(user: str, password: str) -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        asked = logins(transport, server, Clock())
        await asked.principal("alice", "secret")
        for _ in range(3):
            with pytest.raises(AuthenticationFailed):
                await asked.principal(user, password)
        assert "secret" not in repr(vars(asked))
        await transport.close()


async def test_another_broker_is_asked_when_one_is_gone() -> None:
    async with login_server() as server:
        server.add_user("alice", "secret")
        transport = GrpcTransport()
        asked = BasicLogins(
            transport, ["127.0.0.1:1", server.endpoint], mechanism="SCRAM-SHA-512", cache_ms=0
        )
        for _ in range(3):
            assert await asked.principal("alice", "secret") == "User:alice"
        alone = BasicLogins(transport, ["127.0.0.1:1"], mechanism="SCRAM-SHA-512", cache_ms=0)
        with pytest.raises(BrokersUnavailable):
            await alone.principal("alice", "secret")
        await transport.close()


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic_logins, "CACHED_MAX", 2)
    async with login_server() as server:
        transport = GrpcTransport()
        asked = logins(transport, server, Clock())
        for name in "abcd":
            server.add_user(name, "secret")
            await asked.principal(name, "secret")
        assert len(asked._proved) == 2
        await transport.close()
