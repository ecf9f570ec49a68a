"""No request keeps a broker's event loop for long in one piece, however much it names.

Every API at the largest request that its decoder takes, one for each array of its newest version,
against a broker process that measures the CPU time of each callback of its loop. The time of
Python's garbage collector is printed, and not counted: it is not this request's. A request that takes
too long has two more attempts, as CPU time grows where another process shares the core's caches.

Creations are validated, not made: what a new topic costs every broker is another matter.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Final

import pytest

from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.request_decoding import ITEMS_MAX
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.watched_broker import HELD_FILE
from tests.unit.kafka.largest_requests import LargeRequest, largest_requests

HELD_S_MAX: Final = 0.020
PARTITIONS: Final = 1000
_PING: Final = LargeRequest(ApiKey.API_VERSIONS, 0, "", b"")
_FIND_GROUP: Final = LargeRequest(ApiKey.FIND_COORDINATOR, 0, "", b"\0\5group")
ATTEMPTS_MAX: Final = 3


@pytest.mark.parametrize(
    "count",
    [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)],
)
@pytest.mark.timeout(900)
async def test_no_request_keeps_the_loop_for_long(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv(HELD_FILE, str(held))
    settings = {
        "listeners": "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0,KAFKA://127.0.0.1:0",
        "auto.create.topics.enable": "false",
    }
    module = "tests.integration.broker.watched_broker"
    async with BrokerCluster(tmp_path, module=module, settings=settings) as cluster:
        await cluster.create_topic("orders", partitions=PARTITIONS)
        broker = cluster.brokers[1]
        too_long: list[str] = []
        await _asked(broker.ports["KAFKA"], _FIND_GROUP)  # creates the topic of offsets
        for request in largest_requests(count=count):
            for _ in range(ATTEMPTS_MAX):
                before = held.stat().st_size
                outcome = await _asked(broker.ports["KAFKA"], request)
                await _asked(broker.ports["KAFKA"], _PING)  # the callback that answered has ended
                worst, collecting, what = _worst(held.read_text()[before:])
                print(
                    f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {outcome:>11}"
                    f"  {request.name}  {what[:200]}"
                )
                if worst <= HELD_S_MAX:
                    break
            else:
                too_long.append(f"{request.name}: {worst} s in {what}")
        assert "Request failed" not in broker.log_path.read_text()
        assert not too_long, "\n".join(too_long)


def _worst(lines: str) -> tuple[float, float, str]:
    """The longest piece without the collector's time, the most of that time, and what ran."""
    worst, most, what = 0.0, 0.0, ""
    for line in lines.splitlines():
        seconds, collecting, ran = line.split("\t")
        most = max(most, float(collecting))
        if float(seconds) - float(collecting) > worst:
            worst, what = float(seconds) - float(collecting), ran
    return worst, most, what


async def _asked(port: int, request: LargeRequest) -> str:
    """Send a request on a connection of its own, and wait for its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    flexible = request.version >= SUPPORTED[request.key].flexible
    header = struct.pack(">hhih", request.key, request.version, 1, 2) + b"me" + b"\0" * flexible
    content = header + request.body
    writer.write(struct.pack(">i", len(content)) + content)
    try:
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            return f"{size} B"
    except asyncio.IncompleteReadError:
        return "closed"
    finally:
        writer.close()
