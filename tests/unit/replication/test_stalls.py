"""A leader whose event loop or machine stalled does not count that time as lag of its followers
(rule R10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.partition.effects import ProposeIsr
from odradek_broker.partition.settings import ReplicaSettings
from odradek_broker.replication.partition_table import StallLog
from odradek_runtime.clock import Clock
from tests.unit.log.material import memory_broker
from tests.unit.replication.memory_table import CONFIG, OWN, table_of

LAG_MAX_MS = 1_000
_WAIT_S_MAX = 20.0


class SetClock(Clock):
    """A boot-time clock that the test sets; the other clocks are the machine's."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.reads = 0

    def boottime_ms(self) -> int:
        self.reads += 1
        return self.now_ms


class Proposals:
    """The ISRs that a leader proposed."""

    def __init__(self) -> None:
        self.isrs: list[list[int]] = []

    def propose(self, _partition: Any, proposal: ProposeIsr, **_: Any) -> None:
        self.isrs.append([broker_id for broker_id, _ in proposal.isr])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  # of somebody who does not tell
            await asyncio.sleep(0)


async def test_a_suspended_machine_does_not_shrink_the_isr() -> None:
    clock, proposals = SetClock(), Proposals()
    broker = memory_broker(CONFIG)
    broker.append(3)  # the other replica has none of it
    settings = ReplicaSettings(replica_lag_time_max_ms=LAG_MAX_MS)
    async with table_of(
        broker, 1, leader=OWN, settings=settings, proposals=proposals, clock=clock
    ) as (
        table,
        _,
    ):
        ticking = asyncio.create_task(table.tick())

        async def round_at(now_ms: int) -> None:
            clock.now_ms, before = now_ms, clock.reads
            await until(lambda: clock.reads >= before + 25)  # ten slices twice, and a step each

        try:
            await round_at(0)
            await round_at(3_600_000)
            assert proposals.isrs == []
            for later_ms in range(400, LAG_MAX_MS + 401, 400):
                assert proposals.isrs == [], f"after {later_ms} ms"
                await round_at(3_600_000 + later_ms)
            assert proposals.isrs[:1] == [[OWN]], "it does lag"
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)


def test_stalls_are_one_line_a_minute_with_their_count_and_the_longest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stalls = StallLog()
    for at_ms, stall_ms in ((0, 700), (1_000, 900), (20_000, 4_000), (59_000, 600)):
        stalls.add(stall_ms)
        stalls.write_due(at_ms)
    assert lines(caplog) == [(1, 700)], "the first is told at once"
    stalls.write_due(60_000)
    stalls.write_due(200_000)
    assert lines(caplog) == [(1, 700), (3, 4_000)], "nothing is written where nothing stalled"


async def test_a_broker_writes_many_stalls_as_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SetClock()
    async with table_of(memory_broker(CONFIG), 1, leader=OWN, clock=clock) as (table, _):
        ticking = asyncio.create_task(table.tick())
        try:
            for stall in range(1, 54):
                clock.now_ms, before = stall * 1_000, clock.reads
                await until(lambda seen=before: clock.reads >= seen + 2)  # type: ignore[misc]
            assert lines(caplog)[0][0] == 1
            assert len(lines(caplog)) == 1
            clock.now_ms = 70_000
            await until(lambda: len(lines(caplog)) == 2)
            assert lines(caplog)[1][1] == 17_000 - 10
            assert 40 < lines(caplog)[1][0] <= 53
        finally:
            ticking.cancel()


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """Return the count and the longest stall of each log line."""
    fields = [
        getattr(record, "odradek_fields")  # noqa: B009  # the attribute is no part of LogRecord's type
        for record in caplog.records
        if record.getMessage()
        == "Event loop did not run for a while; requests and heartbeats waited"
    ]
    return [(one["stalls"], one["longest_stall_ms"]) for one in fields]
