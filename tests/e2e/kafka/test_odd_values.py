"""Well-formed requests with odd values get a response or end their connection; they have no other
effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.messages import MESSAGES
from tests.unit.kafka.odd_requests import (
    ABLE,
    TOPICS,
    OddRequests,
    framed,
    opened,
    values_of,
)

WAITING = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.PRODUCE,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
WAIT_S = 0.1  # for a response of these APIs, which may come only when other clients join or produce
RESPONSE_S = 30.0


@pytest.fixture
def victims() -> Iterator[EmbeddedCluster]:
    """Yield a cluster that no other test needs afterwards."""
    settings = ("group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=true")
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=settings)) as running:
        running.start()
        running.wait_ready()
        yield running


class Attack:
    """Sends odd requests over one connection after the other; `answered` counts responses by
    API.
    """

    def __init__(self, cluster: EmbeddedCluster, seed: int) -> None:
        host, port = cluster.kafka_bootstrap.split(":")
        self._address = host, int(port)
        self._requests = OddRequests(seed)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.answered: dict[ApiKey, int] = dict.fromkeys(ABLE, 0)
        self.unknown_errors: list[str] = []
        self.sent: list[str] = []

    async def send(self, key: ApiKey, version: int) -> None:
        body = self._requests.request(key, version)
        self.sent.append(f"{key.name} {version} {body[:300].hex()}")
        response = await self._exchange(key, framed(key, version, body))
        if response is None:
            return
        message = opened(key, version, response)
        self.answered[key] += 1
        self._requests.learn(key, version, message)
        codes = {
            value
            for name, value in values_of(message, MESSAGES[key][1]._struct, version)
            if name.endswith("error_code")
        }
        if ErrorCode.UNKNOWN_SERVER_ERROR in codes:
            self.unknown_errors.append(f"{self.sent[-1]}: {message}")

    async def _exchange(self, key: ApiKey, frame: bytes) -> bytes | None:
        if self._connection is None:
            self._connection = await asyncio.open_connection(*self._address)
        reader, writer = self._connection
        writer.write(frame)
        try:
            async with asyncio.timeout(WAIT_S if key in WAITING else RESPONSE_S):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                return await reader.readexactly(size)
        except TimeoutError:
            assert key in WAITING, f"no response to {self.sent[-1]}"
            await self.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
        return None

    async def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            with contextlib.suppress(ConnectionError):
                await self._connection[1].wait_closed()
            self._connection = None


def errors_in_logs(cluster: EmbeddedCluster) -> list[dict[str, Any]]:
    """Return the errors that the processes logged."""
    lines = [
        json.loads(line)
        for child in cluster.children()
        for line in child.log_path.read_text().splitlines()
        if line.startswith("{")
    ]
    return [line for line in lines if line.get("level", "").upper() in ("ERROR", "CRITICAL")]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "rounds"), [(1, 3), pytest.param(2, 400, marks=pytest.mark.long)])
async def test_odd_values(victims: EmbeddedCluster, seed: int, rounds: int) -> None:
    client = {"bootstrap.servers": victims.kafka_bootstrap}
    admin = AdminClient(client)
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in TOPICS]).values():
        future.result(20)
    attack = Attack(victims, seed)
    for _ in range(rounds):
        for key in ABLE:
            for version in range(SUPPORTED[key].lowest, SUPPORTED[key].highest + 1):
                await attack.send(key, version)
    await attack.close()
    assert not attack.unknown_errors
    assert not errors_in_logs(victims)
    assert all(child.is_running for child in victims.children())
    assert not [key.name for key, count in attack.answered.items() if not count]
    producer = ck.Producer(client)
    producer.produce("after", b"x")
    assert producer.flush(20) == 0
