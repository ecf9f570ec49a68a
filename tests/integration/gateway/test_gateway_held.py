"""No produce request of thousands of records blocks a gateway's event loop for long without a
pause.

The gateway process measures the CPU time of each callback of its event loop (`watched_broker`). A
request that takes too long has two more attempts, since CPU time grows when another process shares
the core's caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from odradek_runtime.budget.client_budget import ITEMS_MAX
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.test_loop_held import ATTEMPTS_MAX, HELD_S_MAX, _lines, _worst
from tests.integration.broker.watched_broker import HELD_FILE, WATCHED_PROGRAM

READY_S_MAX: Final = 300.0


class LargeCall(NamedTuple):
    """One HTTP request."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"


@pytest.mark.parametrize("count", [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_produce_request_keeps_a_gateway_for_long(count: int, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    async with BrokerCluster(tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=10)
        async with gateway(tmp_path, held, cluster) as http:
            too_long: list[str] = []
            for call in _calls(count):
                for _ in range(ATTEMPTS_MAX):
                    before = len(_lines(held))
                    response = await http.request(
                        call.method,
                        call.path,
                        content=None if call.body is None else json.dumps(call.body),
                        headers={"content-type": call.content_type},
                    )
                    await http.get("/v3/clusters")  # the callback that responded has ended
                    worst, collecting, what = _worst(_lines(held)[before:])
                    print(
                        f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {response.status_code}"
                        f"  {call.method} {call.path} {call.content_type}  {what[:200]}",
                        flush=True,
                    )
                    assert response.status_code < 500, response.text[:1000]
                    if worst <= HELD_S_MAX:
                        break
                else:
                    too_long.append(f"{call.method} {call.path}: {worst} s in {what}")
    assert not too_long, "\n".join(too_long)


def _calls(count: int) -> Iterator[LargeCall]:
    binary = [{"key": "a2V5", "value": "dmFsdWU="}] * count
    plain = [{"key": number, "value": {"number": number}} for number in range(count)]
    for path in ("/topics/orders", "/topics/orders/partitions/1"):
        yield LargeCall("POST", path, {"records": binary}, "application/vnd.kafka.binary.v2+json")
        yield LargeCall("POST", path, {"records": plain}, "application/vnd.kafka.json.v2+json")


@asynccontextmanager
async def gateway(
    directory: Path, held: Path, cluster: BrokerCluster
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")}
    settings = {"listen": "127.0.0.1:0", "bootstrap": cluster.brokers[1].endpoint}
    with (directory / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.broker.watched_broker",
            "--exit-with-parent",
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**environment, HELD_FILE: str(held), WATCHED_PROGRAM: "odradek_gateway"},
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S_MAX):
            line = await process.stdout.readline()
        assert line, (directory / "gateway.log").read_text()[-4000:]
        (port,) = json.loads(line)["ports"].values()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield http
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
