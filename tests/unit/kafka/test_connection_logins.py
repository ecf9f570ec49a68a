"""Logins on a Kafka connection: requests before the login, the expiry of a login, and logging in again."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from typing import Any

import pytest
import scramp

from odradek_broker.access.sasl import SaslExchange, credential_of
from odradek_broker.kafka import connection_times
from odradek_broker.kafka import listener as kafka_listener
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ScramMechanism
from odradek_runtime.clock import monotonic_ms
from tests.unit.kafka import fake_broker
from tests.unit.kafka.test_connection import PRODUCE_3
from tests.unit.kafka.wire_client import WireClient, eventually, listening


class TestLogin:
    """Logins on SASL listeners: requests before the login are refused; SCRAM messages by hand, and
    raw tokens.
    """

    @staticmethod
    def serving(**settings: Any) -> Any:
        served = fake_broker.services()
        salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"s" * 16, 4096)
        served.image.scram["alice", ScramMechanism.SHA_256] = credential_of(
            "alice",
            ScramMechanism.SHA_256,
            salt=b"s" * 16,
            salted_password=salted,
            iterations=4096,
        )
        return listening(
            served,
            security_protocols=(("KAFKA", "SASL_PLAINTEXT"),),
            sasl_mechanisms=("PLAIN", "SCRAM-SHA-256"),
            **settings,
        )

    @staticmethod
    async def handshake(client: WireClient, mechanism: str, version: int = 1) -> int:
        name = mechanism.encode()
        client.send(ApiKey.SASL_HANDSHAKE, version, struct.pack(">h", len(name)) + name)
        _, body = await client.receive()
        code: int = struct.unpack(">h", body[:2])[0]
        return code

    @staticmethod
    async def token(client: WireClient, token: bytes) -> Any:
        client.send(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
        _, body = await client.receive()
        return messages.SaslAuthenticateResponse.decode(body, version=1)

    async def log_in(self, client: WireClient, password: str = "secret") -> Any:
        assert await self.handshake(client, "SCRAM-SHA-256") == 0
        scram = scramp.ScramClient(["SCRAM-SHA-256"], "alice", password)
        told = await self.token(client, scram.get_client_first().encode())
        scram.set_server_first(bytes(told.auth_bytes).decode())
        told = await self.token(client, scram.get_client_final().encode())
        if told.error_code == 0:
            scram.set_server_final(bytes(told.auth_bytes).decode())
        return told

    @staticmethod
    async def checked() -> None:
        """Wait until the listener has checked its connections several times."""
        end_ms = monotonic_ms() + 100
        await eventually(lambda: monotonic_ms() > end_ms)

    async def test_scram(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            assert (await self.log_in(client)).error_code == 0
            client.send(ApiKey.METADATA, 12)
            await client.receive()

    async def test_a_wrong_password_is_told_and_ends_the_connection(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            told = await self.log_in(client, "wrong")
            assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "wrong" not in (told.error_message or "")
            assert await client.is_closed()

    async def test_nothing_else_is_understood_before_it(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            client.send(ApiKey.API_VERSIONS, 3)
            await client.receive()
            client.send(ApiKey.METADATA, 12)
            assert await client.is_closed()

    async def test_a_token_without_a_handshake_is_an_illegal_state(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            told = await self.token(client, b"\0alice\0secret")
            assert told.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.is_closed()

    async def test_plain_is_not_offered_without_tls(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            code = await self.handshake(client, "PLAIN")
            assert code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert await client.is_closed()

    async def test_frames_are_small_before_it_and_large_after(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            client.writer.write(struct.pack(">i", 4 * 1024 + 1))
            assert await client.is_closed()
            client = await server.connect()
            await self.log_in(client)
            client.send(
                ApiKey.PRODUCE, 3, PRODUCE_3[:-65] + struct.pack(">i", 200_000) + bytes(200_000)
            )
            await client.receive()

    @pytest.mark.parametrize("reauth_ms_max", [0, 1])
    async def test_raw_tokens_after_handshake_0(self, reauth_ms_max: int) -> None:
        async with self.serving(connections_max_reauth_ms=reauth_ms_max) as server:
            client = await server.connect()
            assert await self.handshake(client, "SCRAM-SHA-256", 0) == 0
            scram = scramp.ScramClient(["SCRAM-SHA-256"], "alice", "secret")
            client.send_frame(scram.get_client_first().encode())
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
            scram.set_server_first((await client.reader.readexactly(size)).decode())
            client.send_frame(scram.get_client_final().encode())
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
            scram.set_server_final((await client.reader.readexactly(size)).decode())
            ends_ms = monotonic_ms() + reauth_ms_max + 1
            await eventually(lambda: monotonic_ms() > ends_ms)
            client.send(ApiKey.METADATA, 12)
            if reauth_ms_max:
                assert await client.is_closed(), "the login has run out"
            else:
                await client.receive()

    @pytest.mark.parametrize("version", [0, 1])
    async def test_a_bug_in_a_login_costs_that_connection_alone(
        self, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def breaks(*_: Any) -> bytes:
            raise RuntimeError("a bug")

        async with self.serving() as server:
            other = await server.connect()
            await self.log_in(other)
            monkeypatch.setattr(SaslExchange, "step", breaks)
            client = await server.connect()
            assert await self.handshake(client, "SCRAM-SHA-256", version) == 0
            if version:
                client.send(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", 1) + b"x")
            else:
                client.send_frame(b"x")
            assert await client.is_closed()
            assert server.listeners.counters.failures == 1
            other.send(ApiKey.METADATA, 12)
            await other.receive()

    async def test_a_nonce_of_another_exchange_is_refused(self) -> None:
        async with self.serving() as server:
            client = await server.connect()
            assert await self.handshake(client, "SCRAM-SHA-256") == 0
            scram = scramp.ScramClient(["SCRAM-SHA-256"], "alice", "secret")
            told = await self.token(client, scram.get_client_first().encode())
            scram.set_server_first(bytes(told.auth_bytes).decode())
            final = scram.get_client_final()
            nonce = final.split(",")[1]
            told = await self.token(client, final.replace(nonce, "r=forged").encode())
            assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    async def test_who_logs_in_again_has_as_long_as_at_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kafka_listener, "_CHECK_INTERVAL_S", 0.01)
        loop = asyncio.get_running_loop()
        real_s, ahead_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real_s() + ahead_s)
        limit_s = connection_times.FIRST_FRAME_MS_MAX / 1000 + 1
        async with self.serving() as server:
            client = await server.connect()
            await self.log_in(client)
            ahead_s += limit_s
            await self.checked()
            assert await self.handshake(client, "SCRAM-SHA-256") == 0
            await self.checked()
            assert (await self.log_in(client)).error_code == 0
            assert await self.handshake(client, "SCRAM-SHA-256") == 0
            ahead_s += limit_s
            assert await client.is_closed(), "nor has it longer"

    async def test_a_login_that_has_run_out_must_be_renewed(self) -> None:
        async with self.serving(connections_max_reauth_ms=30) as server:
            client = await server.connect()
            told = await self.log_in(client)
            assert told.session_lifetime_ms == 30
            await asyncio.sleep(0.05)  # the session's life itself is what is tested
            client.send(ApiKey.METADATA, 12)
            assert await client.is_closed()
