"""HTTP/1 requests drawn by a grammar: the gateway responds without a 5xx status or closes the connection, and
serves the next client.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import httpx
import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster
from tests.e2e.kafka.test_odd_values import errors_in_logs

RESPONSE_S: Final = 20.0
_METHODS: Final = (
    b"GET",
    b"POST",
    b"DELETE",
    b"get",
    b"PRI",
    b"CONNECT",
    b"G\0T",
    b"",
    b"X" * 9000,
    b"OPTIONS",
)
_TARGETS: Final = (
    b"/topics",
    b"/topics/orders",
    b"/topics/%00",
    b"/topics/" + b"%2e%2e/" * 20,
    b"/topics/\xff\xfe",
    b"//evil/topics",
    b"http://evil/topics",
    b"*",
    b"/v3/clusters?" + b"a=b&" * 3000,
    b"/consumers/g/instances/i/records?timeout=-1&max_bytes=1e9",
    b"/topics/orders/partitions/99999999999999999999/offsets",
)
_VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"ICY", b"")
_HEADERS: Final = (
    b"Host: 127.0.0.1",
    b"Host: evil",
    b"Host:",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 5, 5",
    b"Content-Length: 99999999999999999999999",
    b"Content-Length: +5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding : chunked",
    b"Content-Type: application/json",
    b"Content-Type: application/vnd.kafka.json.v2+json",
    b"Content-Type: \xff",
    b"Content-Encoding: gzip",
    b"Accept: text/html;q=nan",
    b"Authorization: Basic \xff\xfe",
    b"Authorization: Bearer " + b"." * 5000,
    b"Expect: 100-continue",
    b"Connection: upgrade, close, keep-alive",
    b"Upgrade: h2c",
    b"X: " + b"x" * 70_000,
    b" folded: value",
    b"no colon",
    b"\0: \0",
    b"Range: bytes=0-,0-,0-",
)
_BODIES: Final = (
    b"",
    b"hello",
    b'{"records": [{"value": 1}]}',
    b'{"records":' + b"[" * 5000,
    b"5\r\nhello\r\n0\r\n\r\n",
    b"-1\r\nx\r\n",
    b"ffffffffffffffffff\r\nx",
    b"5;ext=" + b"e" * 20_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"0\r\nTrailer: x\r\n\r\nGET /topics HTTP/1.1\r\n\r\n",
    b"\x1f\x8b\x08\0\0\0\0\0",
    b"\0" * 3000,
)


def odd_request(draw: random.Random) -> bytes:
    """Draw a request that is mostly close to a valid one."""
    method = draw.choice(_METHODS[:3] if draw.random() < 0.7 else _METHODS)
    version = draw.choice(_VERSIONS[:1] if draw.random() < 0.8 else _VERSIONS)
    headers = [_HEADERS[0]] if draw.random() < 0.8 else []
    headers += draw.choices(_HEADERS, k=draw.randrange(5))
    draw.shuffle(headers)
    ending = draw.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"))
    lines = [b" ".join((method, draw.choice(_TARGETS), version)), *headers, b"", b""]
    data = ending.join(lines) + draw.choice(_BODIES)
    return data[: draw.randrange(len(data))] if draw.random() < 0.1 and data else data


async def outcome_of(port: int, data: bytes) -> str:
    """Send the request and the end of the stream; return the status, or that the gateway closed the
    connection.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        # The gateway may have refused the first bytes and closed the connection already.
        with suppress(OSError):
            writer.write_eof()
        async with asyncio.timeout(RESPONSE_S):
            line = await reader.readline()
            while await reader.read(1 << 16):
                pass
        return line[9:12].decode("latin-1") if line.startswith(b"HTTP/1.") else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.transport.abort()


@pytest.fixture
def victims() -> Iterator[EmbeddedCluster]:
    """Yield a cluster that no other test needs afterwards."""
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 400), pytest.param(2, 50_000, marks=pytest.mark.long)]
)
async def test_odd_http(victims: EmbeddedCluster, seed: int, count: int) -> None:
    url = victims.describe()["gateway"]
    port = int(url.rpartition(":")[2])
    draw = random.Random(seed)
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    for _ in range(count // 8):
        requests = [odd_request(draw) for _ in range(8)]
        for data, outcome in zip(
            requests,
            await asyncio.gather(*(outcome_of(port, data) for data in requests)),
            strict=True,
        ):
            outcomes[outcome] += 1
            if outcome.startswith("5") and outcome not in ("501", "505"):
                faults.append(f"{outcome}: {data[:300]!r}")
    print(outcomes)
    assert not faults, "\n".join(faults[:10])
    assert not errors_in_logs(victims)
    assert all(child.is_running for child in victims.children())
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        assert (await http.get("/topics")).status_code == 200
