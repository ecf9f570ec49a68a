"""No part of a request stays in memory after its connection is closed, whether it was sent in part,
or sent and never answered.

Clients send a large request of every API and close their connections at once. The broker measures
the memory of its objects (`measured_broker`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Final

import pytest

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.measured_broker import MEMORY_FILE
from tests.integration.broker.test_loop_held import _FIND_GROUP, _PING, KAFKA_LISTENER, _asked
from tests.unit.kafka.largest_requests import LargeRequest, largest_requests

ITEMS: Final = 1000
UNFINISHED: Final = 100
UNANSWERED: Final = 6
KEPT_BYTES_MAX: Final = 512 << 10
"""What caches may grow by. A hundred unfinished requests have 1 MiB and more, six decoded ones 3 MiB."""
SETTLED_S_MAX: Final = 30.0
OUTLIVE_CONNECTIONS: Final = frozenset(
    {
        ApiKey.FETCH,  # a fetch session
        ApiKey.JOIN_GROUP,  # a member
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
"""APIs whose requests make something that the protocol keeps when the connection is closed; all of it is bounded."""


@pytest.mark.long  # a minute
@pytest.mark.timeout(900)
async def test_nothing_of_a_request_is_kept_when_its_connection_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.touch()
    monkeypatch.setenv(MEMORY_FILE, str(memory))
    module = "tests.integration.broker.measured_broker"
    kept: list[str] = []
    async with BrokerCluster(tmp_path, module=module, settings=KAFKA_LISTENER) as cluster:
        await cluster.create_topic("orders", partitions=100)
        await cluster.disable_topic_creation()
        broker = cluster.brokers[1]
        port = broker.ports["KAFKA"]
        assert broker.process is not None
        pid = broker.process.pid
        await _asked(port, _FIND_GROUP)  # creates the topic of offsets
        for request in largest_requests(count=ITEMS):
            if request.key in OUTLIVE_CONNECTIONS:
                continue
            frame = _frame(request)
            for _ in range(2):  # caches fill
                await _asked(port, request)
            before = await _size_bytes(pid, port, memory)
            for _ in range(UNFINISHED):
                await _abandon(port, frame[: -len(frame) // 4])
            for _ in range(UNANSWERED):
                await _abandon(port, frame)
            grown = 0
            try:
                async with asyncio.timeout(SETTLED_S_MAX):
                    while (grown := await _size_bytes(pid, port, memory) - before) > KEPT_BYTES_MAX:
                        await _asked(port, _PING)
            except TimeoutError:
                kept.append(f"{request.name}: {grown} bytes of frames of {len(frame)}")
            print(f"{grown / 1024:8.0f} KiB  {len(frame):7} B  {request.name}", flush=True)
        assert "Request failed" not in broker.log_tail()
    assert not kept, "\n".join(kept)


def _frame(request: LargeRequest) -> bytes:
    flexible = request.version >= SUPPORTED[request.key].flexible
    header = struct.pack(">hhih", request.key, request.version, 1, 2) + b"me" + b"\0" * flexible
    return struct.pack(">i", len(header) + len(request.body)) + header + request.body


async def _abandon(port: int, data: bytes) -> None:
    """Send bytes on a new connection, and reset it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    linger = struct.pack("ii", 1, 0)  # close() sends a reset
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def _size_bytes(pid: int, port: int, memory: Path) -> int:
    lines = _lines(memory)
    os.kill(pid, signal.SIGUSR1)
    async with asyncio.timeout(SETTLED_S_MAX):
        while len(_lines(memory)) == len(lines):
            await _asked(port, _PING)  # handlers run when the loop turns
    return int(_lines(memory)[-1])


def _lines(memory: Path) -> list[str]:
    return [line for line in memory.read_text().split("\n")[:-1] if line]
