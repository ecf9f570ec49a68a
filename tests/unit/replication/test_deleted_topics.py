"""Committed offsets of a deleted topic are deleted, tested through the whole group coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.groups.messages import CommitOffsets, CommittedOffset, FetchOffsets
from odradek_broker.groups.records import OffsetCommitRecord
from odradek_protocol.identity import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.unit.replication.partitions_in_memory import EPOCH, PartitionsInMemory
from tests.unit.replication.running import running, when_answered

OLD, NEW, OTHER = TopicId(b"o" * 16), TopicId(b"n" * 16), TopicId(b"x" * 16)
FIRST, ELSEWHERE = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def partitions() -> PartitionsInMemory:
    made = PartitionsInMemory()
    made.create("t", OLD)
    made.create("u", OTHER)
    return made


@pytest.fixture
async def coordinator(partitions: PartitionsInMemory) -> AsyncIterator[GroupCoordinator]:
    async with running(partitions) as found:
        for partition in (FIRST, ELSEWHERE):
            assert await commit(found, partition, 7) is ErrorCode.NONE
        yield found


async def commit(coordinator: GroupCoordinator, partition: TopicPartition, offset: int) -> int:
    told = await when_answered(
        lambda: coordinator.commit(
            CommitOffsets(
                group_id="g",
                member_id="",
                instance_id=None,
                generation_or_epoch=-1,
                offsets={partition: CommittedOffset(offset=Offset(offset))},
            )
        )
    )
    return told.error or told.partitions[partition]


async def committed(coordinator: GroupCoordinator) -> dict[TopicPartition, int]:
    told = await when_answered(
        lambda: coordinator.fetch_offsets(FetchOffsets(group_id="g", partitions=None))
    )
    return {partition: at.offset for partition, at in told.offsets.items() if at is not None}


async def test_a_deletion_is_written_as_tombstones(
    partitions: PartitionsInMemory, coordinator: GroupCoordinator
) -> None:
    partitions.delete(OLD)
    partitions.tell_image()
    assert await committed(coordinator) == {ELSEWHERE: 7}
    assert partitions.records()[-1] == OffsetCommitRecord(
        group_id="g", partition=FIRST, committed=None
    )


async def test_nobody_reads_old_offsets_of_a_topic_that_is_made_again(
    partitions: PartitionsInMemory, coordinator: GroupCoordinator
) -> None:
    partitions.delete(OLD)
    partitions.create("t", NEW)  # nobody was told yet
    assert await committed(coordinator) == {ELSEWHERE: 7}
    assert await commit(coordinator, FIRST, 1) is ErrorCode.NONE
    partitions.tell_image()
    assert await committed(coordinator) == {FIRST: 1, ELSEWHERE: 7}


async def test_a_deletion_that_no_coordinator_saw_is_found_at_the_next_load(
    partitions: PartitionsInMemory,
) -> None:
    async with running(partitions) as before:
        await commit(before, FIRST, 7)
    partitions.delete(OLD)
    partitions.create("t", NEW)
    async with running(partitions) as after:
        assert await committed(after) == {}
    assert partitions.records()[-1] == OffsetCommitRecord(
        group_id="g", partition=FIRST, committed=None
    )


async def test_a_deletion_during_the_load_is_not_missed(partitions: PartitionsInMemory) -> None:
    async with running(partitions) as before:
        await commit(before, FIRST, 7)
    partitions.before_read = lambda: partitions.delete(OLD)
    async with running(partitions) as after:
        assert await committed(after) == {}


async def test_a_topic_of_the_newest_image_keeps_its_offsets_at_a_load(
    partitions: PartitionsInMemory, coordinator: GroupCoordinator
) -> None:
    """The same metadata update may have the new topic and the leadership, and the coordinator is
    notified of the metadata last.
    """
    watcher = partitions.watcher
    assert watcher is not None
    partitions.create("v", NEW)
    newest = TopicPartition("v", 0)
    async with running(partitions) as other:
        assert await commit(other, newest, 3) is ErrorCode.NONE
    watcher.on_leader(OFFSETS_TOPIC, PartitionIndex(0), LeaderEpoch(EPOCH + 1))
    assert (await committed(coordinator))[newest] == 3


async def test_a_commit_for_a_topic_that_is_not_there_is_refused(
    coordinator: GroupCoordinator,
) -> None:
    absent = TopicPartition("absent", 0)
    assert await commit(coordinator, absent, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await commit(coordinator, TopicPartition("t", 1), 1) is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
