"""The cluster that hostile clients attack: its addresses, how they connect, and the results."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.unit.security.raw_http2 import RawHttp2

PASSWORD: Final = "correct horse"
MALLORY: Final = "mallory"
_ENDED: Final = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError)


@dataclass
class Target:
    """The addresses for hostile clients, and the counts of the outcomes."""

    kafka: int
    grpc: int
    gateway: int
    strangers: ssl.SSLContext  # without a certificate
    mallory: ssl.SSLContext  # with mallory's certificate, for gRPC
    channel: Callable[[], grpc.aio.Channel]
    outcomes: Counter[str] = field(default_factory=Counter)

    @contextlib.asynccontextmanager
    async def kafka_connection(self, *, logs_in: bool = True) -> AsyncIterator[KafkaConnection]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.kafka, ssl=self.strangers, limit=1 << 26
        )
        connection = KafkaConnection(reader, writer)
        try:
            if logs_in:
                await connection.log_in(MALLORY, PASSWORD)
            yield connection
        finally:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def http2(self) -> AsyncIterator[RawHttp2]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.grpc, ssl=self.mallory)
        connection = RawHttp2(reader, writer)
        running = asyncio.create_task(connection.run())
        try:
            yield connection
        finally:
            running.cancel()
            writer.transport.abort()

    async def again(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat the attempt until cancelled, also after errors."""
        while True:
            try:
                await attempt()
                self.outcomes["answered"] += 1
            except _ENDED:
                self.outcomes["connection ended"] += 1
            except grpc.aio.AioRpcError as error:
                self.outcomes[error.code().name] += 1
            await asyncio.sleep(0)


class KafkaConnection:
    """A Kafka connection whose frames are written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, key: ApiKey, version: int, body: bytes, client: bytes = b"me") -> bytes:
        self.send(key, version, body, client)
        return await self.response()

    def send(self, key: ApiKey, version: int, body: bytes, client: bytes = b"me") -> None:
        flexible = version >= SUPPORTED[key].flexible
        head = struct.pack(">hhih", key, version, 1, len(client)) + client + b"\0" * flexible
        self.writer.write(struct.pack(">i", len(head) + len(body)) + head + body)

    async def response(self) -> bytes:
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def log_in(self, user: str, password: str) -> None:
        await self.ask(ApiKey.SASL_HANDSHAKE, 1, text_of("PLAIN"))
        proof = f"\0{user}\0{password}".encode()
        await self.ask(ApiKey.SASL_AUTHENTICATE, 1, struct.pack(">i", len(proof)) + proof)


def text_of(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


async def many(count: int, attack: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(attack() for _ in range(count)))
