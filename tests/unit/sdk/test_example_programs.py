"""Example programs, tested with a cluster in memory."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from odradek import ConsumerRecord
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode

EXAMPLES = Path(__file__).parents[3] / "clients/python/examples"
ORDER = {"order": 7, "item": "spool"}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create_topic("orders")
    return cluster


@pytest.fixture
async def shop(cluster: MemoryCluster) -> AsyncIterator[Any]:
    """Yield an HTTP client of the service, which writes to the cluster in memory."""
    app = example("fastapi_service").service(cluster.client)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://shop"
        ) as http_client,
    ):
        yield http_client


async def test_the_service_writes_an_order(cluster: MemoryCluster, shop: httpx.AsyncClient) -> None:
    response = await shop.post("/orders", json=ORDER)
    assert (response.status_code, response.json()) == (201, {"partition": 0, "offset": 0})
    responses = await asyncio.gather(*(shop.post("/orders", json=ORDER) for _ in range(20)))
    assert sorted(response.json()["offset"] for response in responses) == list(range(1, 21))
    assert cluster.log("orders", 0).log_end_offset == 21


async def test_the_service_responds_503_with_the_reason(
    cluster: MemoryCluster, shop: httpx.AsyncClient
) -> None:
    cluster.fail_next("produce", "orders", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    response = await shop.post("/orders", json=ORDER)
    assert response.status_code == 503
    assert "orders" in response.json()["detail"]
    assert "ACL" in response.json()["detail"]
    assert (await shop.post("/orders", json=ORDER)).status_code == 201


async def test_the_service_refuses_a_body_that_is_no_order(shop: httpx.AsyncClient) -> None:
    assert (await shop.post("/orders", json={"order": "x"})).status_code == 422


@pytest.mark.parametrize(("failures", "is_done"), [(0, True), (2, True), (3, False)])
async def test_a_job_is_tried_three_times(
    cluster: MemoryCluster, failures: int, is_done: bool
) -> None:
    worker = example("retrying_worker")
    async with cluster.client() as client, client.producer() as producer:
        await producer.send_and_wait("orders", b"7")
        async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
            (record,) = await consumer.getmany(timeout_ms=5_000)
    errors = [OSError(f"attempt {attempt}") for attempt in range(1, failures + 1)]
    remaining = list(errors)

    async def job(_: ConsumerRecord) -> None:
        if remaining:
            raise remaining.pop(0)

    outcome = await worker.attempted(job, record)
    assert outcome is (None if is_done else errors[-1])
    assert not remaining
