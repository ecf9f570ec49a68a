"""The gateway's producers for transactions of one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from odradek.testing import MemoryCluster
from odradek_gateway.transactional_producers import PRODUCERS_MAX, TransactionalProducers


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create_topic("out")
    return cluster


@pytest.fixture
async def producers(cluster: MemoryCluster) -> AsyncIterator[TransactionalProducers]:
    async with cluster.client() as client:
        producers = TransactionalProducers(client)
        yield producers
        await producers.close()


async def test_requests_that_fail_need_no_further_transactional_ids(
    cluster: MemoryCluster, producers: TransactionalProducers
) -> None:
    """The cluster remembers an id for a week, so a client that alternates must not get a new one each time."""
    for _ in range(3):
        async with producers.lease() as producer, producer.transaction():
            await producer.send("out", b"a")
        with pytest.raises(KeyError):
            async with producers.lease():
                raise KeyError
    assert len(cluster.transactions.ids) == 1


async def test_each_request_that_runs_has_an_id_of_its_own(
    cluster: MemoryCluster, producers: TransactionalProducers
) -> None:
    arrived = asyncio.Barrier(PRODUCERS_MAX)

    async def write() -> None:
        async with producers.lease() as producer, producer.transaction():
            await producer.send("out", b"a")
            await arrived.wait()

    for _ in range(2):
        await asyncio.gather(*(write() for _ in range(PRODUCERS_MAX)))
    assert len(cluster.transactions.ids) == PRODUCERS_MAX
