"""Fixtures: a cluster in memory, and clients of it that are closed at the end of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from odradek import Client
from odradek.testing import MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    """Return a cluster in memory with three brokers."""
    return MemoryCluster(brokers=3)


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client
