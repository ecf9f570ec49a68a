"""Fixtures: broker clusters for the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.broker.memory_controller import MemoryController


@pytest.fixture
async def controller() -> AsyncIterator[MemoryController]:
    one = MemoryController(cluster_id="c")
    await one.start()
    yield one
    await one.stop()
