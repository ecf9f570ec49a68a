"""Offsets are deleted by their age, and a wall clock that is set forward makes none of them old at once."""

from __future__ import annotations

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.groups.messages import CommitOffsets, CommittedOffset, FetchOffsets
from odradek_broker.settled_clock import SETTLING_MS, SettledClock
from odradek_protocol.identity import (
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from odradek_runtime.clock import Clock
from tests.unit.replication.partitions_in_memory import PartitionsInMemory
from tests.unit.replication.running import SETTINGS, running, when_answered

GROUP, ORDERS = GroupId("g"), TopicPartition(TopicName("orders"), PartitionIndex(0))
RETENTION_MS = SETTINGS.offsets_retention_minutes * 60_000


class TwoClocks(Clock):
    """A machine whose wall clock and monotonic clock the test sets."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_700_000_000_000, 1_000

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic

    def advance(self, elapsed_ms: int) -> None:
        self.wall += elapsed_ms
        self.monotonic += elapsed_ms


async def offsets(groups: GroupCoordinator) -> list[int]:
    fetched = await when_answered(
        lambda: groups.fetch_offsets(FetchOffsets(group_id=GROUP, partitions=None))
    )
    return [one.offset for one in fetched.offsets.values() if one is not None]


async def test_a_wall_clock_that_is_set_forward_deletes_no_offsets() -> None:
    partitions, clock = PartitionsInMemory(), TwoClocks()
    partitions.create("orders", TopicId(b"o" * 16))
    async with running(partitions, clock=clock) as groups:
        commit = CommitOffsets(
            group_id=GROUP,
            member_id=MemberId(""),
            instance_id=None,
            generation_or_epoch=-1,
            offsets={ORDERS: CommittedOffset(offset=Offset(7))},
        )
        await when_answered(lambda: groups.commit(commit))
        clock.wall += 2 * RETENTION_MS
        for _ in range(3):
            clock.advance(600_000)
            groups.expire_offsets()
        assert await offsets(groups) == [7]
        clock.wall -= 2 * RETENTION_MS
        groups.expire_offsets()
        assert await offsets(groups) == [7]
        clock.advance(RETENTION_MS)
        groups.expire_offsets()
        assert await offsets(groups) == []


def test_a_jump_of_the_clock_counts_when_it_has_lasted_for_a_day() -> None:
    clock = SettledClock()
    assert clock.read(now_ms=0, wall_ms=1_000_000) == 1_000_000
    assert clock.read(now_ms=1_000, wall_ms=9_000_000_000) == 1_001_000
    assert clock.read(now_ms=SETTLING_MS, wall_ms=9_000_000_000) == 1_000_000 + SETTLING_MS
    assert clock.read(now_ms=SETTLING_MS + 1_000, wall_ms=9_000_000_000) == 9_000_000_000
    assert clock.read(now_ms=SETTLING_MS + 2_000, wall_ms=5) == 5, "back at once"
