"""A Kafka listener of the fake broker on loopback, and a client that sends raw frames to it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from odradek_broker.kafka.listener import KafkaListeners
from odradek_broker.kafka.registry import Registry
from odradek_broker.kafka.services import Services
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_runtime.listeners import parse_listeners
from odradek_runtime.tls import TlsFiles
from tests.unit.kafka import fake_broker
from tests.unit.kafka.requests_to_everything import message_of

WAIT_S_MAX = 30.0


class WireClient:
    """One connection that sends and receives raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0

    def send(self, key: ApiKey, version: int, body: bytes | None = None) -> int:
        """Send a request without waiting; return its correlation id."""
        self.correlation_id += 1
        if body is None:
            body = bytes(encode_message(message_of(key, version), version))
        header = struct.pack(">hhih", key, version, self.correlation_id, 2) + b"me"
        if version >= SUPPORTED[key].flexible:
            header += b"\0"
        self.send_frame(header + body)
        return self.correlation_id

    def send_frame(self, content: bytes) -> None:
        self.writer.write(struct.pack(">i", len(content)) + content)

    async def receive(self) -> tuple[int, bytes]:
        """Return the next response: its correlation id, and the bytes after it."""
        async with asyncio.timeout(WAIT_S_MAX):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            content = await self.reader.readexactly(size)
        return struct.unpack(">i", content[:4])[0], content[4:]

    async def is_closed(self) -> bool:
        """Wait until the broker closes the connection; return whether it does."""
        async with asyncio.timeout(WAIT_S_MAX):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Listening:
    """A running listener: its port, the broker behind it, and connections to it."""

    def __init__(self, served: Services, ports: dict[str, int], listeners: KafkaListeners) -> None:
        self.services = served
        self.ports = ports
        self.listeners = listeners
        self.clients: list[WireClient] = []

    @property
    def partitions(self) -> Any:
        return self.services.partitions

    async def connect(
        self, name: str = "KAFKA", ssl_context: ssl.SSLContext | None = None
    ) -> WireClient:
        client = WireClient(
            *await asyncio.open_connection("127.0.0.1", self.ports[name], ssl=ssl_context)
        )
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def listening(
    served: Services | None = None, tls: TlsFiles | None = None, **settings: Any
) -> AsyncIterator[Listening]:
    """Serve the fake broker until the `with` block ends."""
    listeners = settings.pop("listeners", "KAFKA://127.0.0.1:0")
    served = served or fake_broker.services()
    served.settings = replace(served.settings, listeners=parse_listeners(listeners), **settings)
    endpoint = KafkaListeners(served.settings, tls)
    ports = endpoint.bind()
    ready = asyncio.Event()
    serving = asyncio.create_task(endpoint.serve(Registry(served), ready))
    running = Listening(served, ports, endpoint)
    try:
        await asyncio.wait(
            {asyncio.ensure_future(ready.wait()), serving}, return_when="FIRST_COMPLETED"
        )
        yield running
    finally:
        for client in running.clients:
            await client.close()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        endpoint.close()


async def eventually(condition: Any, timeout_s: float = WAIT_S_MAX) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it is the condition of somebody else's state
            await asyncio.sleep(0.005)
