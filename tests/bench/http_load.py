"""Sends HTTP requests with little CPU time from a separate process, one at a time on each keep-alive
connection.

Requests are built once, and only the status and length of responses are checked. `closed` sends the
next request as soon as it has the response to the previous one. `paced` sends at fixed times, however
long the responses take, and measures latency from those times.

    python -m tests.bench.http_load --url http://... --path /topics/t --records 100
        --seconds 10 --connections 8
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import time
from urllib.parse import urlsplit

TYPE = "application/vnd.kafka.binary.v2+json"


class Connection:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the response's body; any status but 200 is an error."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:60]!r} {body[:300]!r}")
        return body

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.close()


def produce_request(host: str, path: str, records: int, value_bytes: int) -> bytes:
    """Return a produce request with incompressible values in base64."""
    values = [base64.b64encode(os.urandom(value_bytes)).decode() for _ in range(records)]
    body = json.dumps({"records": [{"value": value} for value in values]}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {TYPE}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def closed(
    connection: Connection, request: bytes, until_s: float, waits: list[float]
) -> None:
    """Send one request after the other until the time is up."""
    while (began := time.perf_counter()) < until_s:
        body = await connection.ask(request)
        waits.append((time.perf_counter() - began) * 1000)
        if b'"error":null' not in body or b'"error":"' in body:
            raise RuntimeError(f"a record failed: {body[:300]!r}")


async def paced(
    connections: list[Connection], request: bytes, rate: int, seconds: float, waits: list[float]
) -> None:
    """Send `rate` requests per second, each on a free connection. The wait for a free connection
    counts as latency.
    """
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    began = time.perf_counter()

    async def one(due_s: float) -> None:
        connection = await free.get()
        await connection.ask(request)
        waits.append((time.perf_counter() - due_s) * 1000)
        free.put_nowait(connection)

    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            due_s = began + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.create_task(one(due_s))


async def run(options: argparse.Namespace) -> dict[str, float]:
    """Warm up, then measure."""
    where = urlsplit(options.url)
    request = produce_request(where.netloc, options.path, options.records, options.value_bytes)
    connections = [
        Connection(*await asyncio.open_connection(where.hostname, where.port))
        for _ in range(options.connections)
    ]
    waits: list[float] = []
    for seconds in (min(2.0, options.seconds / 4), options.seconds):
        waits.clear()
        began = time.perf_counter()
        if options.rate:
            await paced(connections, request, options.rate, seconds, waits)
        else:
            async with asyncio.TaskGroup() as tasks:
                for connection in connections:
                    tasks.create_task(closed(connection, request, began + seconds, waits))
        took_s = time.perf_counter() - began
    for connection in connections:
        connection.close()
    waits.sort()
    return {
        "requests": len(waits),
        "records_per_s": round(len(waits) * options.records / took_s),
        "ms_p50": round(waits[len(waits) // 2], 2),
        "ms_p99": round(waits[int(len(waits) * 0.99)], 2),
        "ms_max": round(waits[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--records", type=int, default=100, help="records in a request")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--rate", type=int, default=0, help="requests per second; 0: as fast as possible"
    )
    print(json.dumps(asyncio.run(run(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
