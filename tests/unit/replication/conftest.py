"""Fixtures of the tests of replication and coordination."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.unit.replication.tally import (
    Partitions,
    Tally,
    TallyKind,
)


@pytest.fixture
def partitions() -> Partitions:
    made = Partitions()
    made.held = set()
    return made


@pytest.fixture
def kind() -> TallyKind:
    return TallyKind()


@pytest.fixture
async def host(partitions: Partitions, kind: TallyKind) -> AsyncIterator[CoordinatorHost[Tally]]:
    made: CoordinatorHost[Tally] = CoordinatorHost(
        topic=OFFSETS_TOPIC,
        partitions=partitions,  # type: ignore[arg-type]  # of LocalPartitions what it needs
        kind=kind,
        now_wall_ms=lambda: 0,
        tick_ms=1,
    )
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), "the host goes on, whatever a partition meets"
    task.cancel()
    await asyncio.wait([task])
