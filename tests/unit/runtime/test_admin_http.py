"""The routes /metrics, /livez and /readyz, tested over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from odradek_runtime.admin_http import AdminHttp
from odradek_runtime.listeners import ListenerAddress


class Probe:
    def __init__(self) -> None:
        self.wrong = ""
        self.http = AdminHttp(
            metrics=lambda: ("text/plain", b"up 1\n"),
            liveness={"loop": lambda: ""},
            readiness={"serving": lambda: self.wrong},
        )
        self.port = 0

    async def ask(self, raw: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    async def get(self, path: str) -> tuple[int, str]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    made = Probe()
    made.port = await made.http.start(ListenerAddress(name="METRICS", host="127.0.0.1", port=0))
    yield made
    await made.http.stop()


async def test_metrics_are_served(probe: Probe) -> None:
    assert await probe.get("/metrics") == (200, "up 1\n")


async def test_readiness_says_what_is_wrong(probe: Probe) -> None:
    assert (await probe.get("/readyz"))[0] == 200
    probe.wrong = "still starting"
    status, body = await probe.get("/readyz")
    assert status == 503
    assert "still starting" in body
    assert (await probe.get("/livez"))[0] == 200


async def test_verbose_lists_the_checks(probe: Probe) -> None:
    assert "ok serving" in (await probe.get("/readyz?verbose"))[1]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
    ],
)
async def test_other_requests_are_refused(probe: Probe, raw: bytes, status: int) -> None:
    assert (await probe.ask(raw))[0] == status
