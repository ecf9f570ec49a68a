"""Errors of the disk or the metadata at a broker's replicas affect only those replicas that they
must affect.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.directory.strays import Strays
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition import events as ev
from odradek_broker.partition.effects import Role
from odradek_broker.replication.batch_checks import LARGE_BYTES_MIN
from odradek_broker.replication.disk import stray_logs
from odradek_broker.replication.outcomes import OFFSET_EARLIEST, ProduceOutcome
from odradek_broker.replication.partition_table import BROKEN_MAX, PartitionTable
from odradek_protocol.identity import (
    BrokerEpoch,
    LeaderEpoch,
    MetadataOffset,
    Offset,
    PartitionIndex,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import PartitionChange, RemoveTopic
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.unit.replication.led_partition import change, leading, led_by, produce, read
from tests.unit.replication.memory_table import CONFIG, OTHER, OWN, image_of, table_of
from tests.unit.replication.test_full_disk import until
from tests.unit.replication.test_stray_logs import become, filled, moved_away, names, strays
from tests.worlds.memory_storage import MemoryStorage

FOLLOWER = ev.FollowerSession(broker_id=OTHER, broker_epoch=BrokerEpoch(0), session_id=1)


def fail(broker: Broker, operation: str, place: str = "", error: int = errno.EIO) -> None:
    """Let an operation fail on paths that contain `place`."""
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(asked: str, path: Path) -> None:
        if asked == operation and place in str(path):
            raise OSError(error, "failed by the test", str(path))

    storage.fault = fault


async def test_a_delete_that_the_disk_fails_takes_the_directory_offline() -> None:
    broker, reasons = memory_broker(CONFIG), list[str]()
    async with table_of(broker, 1, on_offline=reasons.append) as (table, _):
        fail(broker, "rename")
        change(table, RemoveTopic(topic_id=TOPIC_ID))
        assert not table.by_id
        assert len(reasons) == 1
        assert "failed by the test" in table.offline_reason


@pytest.mark.parametrize(("error", "is_offline"), [(errno.EIO, True), (errno.EACCES, False)])
async def test_a_log_that_cannot_be_put_aside_counts_only_if_the_disk_is_at_fault(
    error: int, is_offline: bool
) -> None:
    (broker, _), reasons = filled(), list[str]()
    async with table_of(broker, 1, on_offline=reasons.append) as (table, _):
        fail(broker, "rename", error=error)
        become(table, MetadataImage())
        await table.pool.idle()
        assert bool(reasons) == is_offline
        assert not table.by_id
        assert len(strays(broker)) == (0 if is_offline else 1)


@pytest.mark.parametrize(("error", "is_offline"), [(errno.EIO, True), (errno.EMFILE, False)])
async def test_a_stray_that_cannot_be_synced_counts_only_if_the_disk_is_at_fault(
    error: int, is_offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker, _), reasons = filled(), list[str]()

    def sync(*_: object) -> None:
        raise OSError(error, "failed by the test")

    monkeypatch.setattr(Strays, "sync", sync)
    async with table_of(broker, 1, on_offline=reasons.append) as (table, _):
        become(table, MetadataImage())
        await table.pool.idle()
        assert bool(reasons) == is_offline
        assert [stray.is_synced for stray in strays(broker)] == [False]


async def test_a_stray_that_cannot_be_opened_takes_the_directory_offline_and_stays() -> None:
    (broker, written), reasons = filled(), list[str]()
    async with table_of(broker, 0, is_active=False, on_offline=reasons.append) as (table, _):
        table.activate(MetadataImage())
        await until(lambda: strays(broker)[0].is_synced)
        fail(broker, "read", ".log")
        become(table, image_of(1, leader=OTHER))
        await until(lambda: bool(reasons))
        assert not table.by_id
        assert len(strays(broker)) == 1
        assert not table.strays.is_returning(TOPIC_ID, PARTITION)
    broker.kill_and_start()
    assert broker.report is not None
    async with table_of(broker, 1) as (table, _):
        await until(lambda: bool(table.by_id))
        assert broker.read_all() == written


@pytest.mark.parametrize("is_moved", [True, False])
async def test_a_stray_whose_replica_leaves_while_it_is_opened_is_put_aside_again(
    is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, _ = filled()
    async with table_of(broker, 0, is_active=False) as (table, _):
        table.activate(MetadataImage())
        await until(lambda: strays(broker)[0].is_synced)
        finish = LogDirectory.finish_return

        def leave_first(directory: LogDirectory, *arguments: Any) -> Any:
            image = image_of(1, leader=OTHER) if is_moved else MetadataImage()
            if is_moved:
                image.replay(MetadataOffset(2), 1, moved_away())
            table.image = image
            return finish(directory, *arguments)

        monkeypatch.setattr(LogDirectory, "finish_return", leave_first)
        become(table, image_of(1, leader=OTHER))
        await until(lambda: not table.strays.is_returning(TOPIC_ID, PARTITION))
        assert not table.by_id
        (stray,) = strays(broker)
        assert ("no replica" in stray.reason) == is_moved
        assert ("no topic" in stray.reason) != is_moved


async def test_strays_expire_by_the_setting_and_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, _ = filled()
    async with table_of(broker, 1) as (table, _):
        become(table, MetadataImage())
        await table.pool.idle()
        table.strays.remove_expired(-1, wall_ms=table.clock.wall_ms())
        table.strays.remove_expired(1 << 50, wall_ms=table.clock.wall_ms())
        assert len(strays(broker)) == 1
        caplog.clear()
        table.strays.remove_expired(0, wall_ms=table.clock.wall_ms())
        assert not strays(broker)
        assert len(names(broker, "-delete")) == 1
    (record,) = [r for r in caplog.records if r.name == stray_logs.__name__]
    assert record.odradek_fields["partitions"] == ["flights-0"]  # type: ignore[attr-defined]
    assert record.odradek_fields["logs"] == 1  # type: ignore[attr-defined]


async def test_a_stray_that_an_operator_removed_is_forgotten() -> None:
    broker, _ = filled()
    async with table_of(broker, 1) as (table, _):
        become(table, MetadataImage())
        await table.pool.idle()
        (stray,) = strays(broker)
        broker.storage.remove_tree(broker.path / stray.name)
        table.strays.remove_expired(-1, wall_ms=table.clock.wall_ms())
        assert not strays(broker)


async def test_internal_errors_of_many_replicas_take_the_directory_offline() -> None:
    reasons: list[str] = []
    told: list[tuple[TopicIdPartition, ...]] = []
    count = BROKEN_MAX + 2
    broker = memory_broker(CONFIG)
    async with table_of(broker, count, on_offline=reasons.append, on_broken=told.append) as (
        table,
        _,
    ):
        for index in range(count):
            assert not reasons or index > BROKEN_MAX
            table.by_id[TOPIC_ID, index].found_bug(AssertionError("a bug"))
        assert len(told) == BROKEN_MAX
        assert len(told[-1]) == BROKEN_MAX
        assert len(reasons) == 1
        assert f"{BROKEN_MAX + 1} replicas failed on internal errors" in reasons[0]


class Watcher:
    """A coordinator of a topic's partitions, which records its notifications."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def on_leader(self, topic: TopicName, partition: PartitionIndex, epoch: LeaderEpoch) -> None:
        self.told.append((topic, partition, epoch))

    def on_resigned(self, topic: TopicName, partition: PartitionIndex) -> None:
        self.told.append((topic, partition, -1))


async def test_a_coordinator_hears_of_the_partitions_that_are_led_already_and_of_later_ones() -> (
    None
):
    async with leading(memory_broker(CONFIG)) as (_, table):
        watcher, other = Watcher(), Watcher()
        table.watch_leadership(TOPIC, watcher)
        table.watch_leadership(TopicName("other"), other)
        assert watcher.told == [(TOPIC, 0, 2)]
        change(table, led_by(OTHER))
        await until(lambda: len(watcher.told) == 2)
        change(table, led_by(OWN))
        await until(lambda: len(watcher.told) == 3)
        change(table, RemoveTopic(topic_id=TOPIC_ID))
        assert watcher.told[1:] == [(TOPIC, 0, -1), (TOPIC, 0, 4), (TOPIC, 0, -1)]
        late = Watcher()
        table.watch_leadership(TOPIC, late)
        assert (late.told, other.told) == ([], [])


async def test_a_follower_is_no_leader_for_a_new_coordinator() -> None:
    async with table_of(memory_broker(CONFIG), 1) as (table, _):
        watcher = Watcher()
        table.watch_leadership(TOPIC, watcher)
        assert watcher.told == []


async def test_the_ends_of_logs_are_told_of_replicas_that_are_here_and_sound() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3)
    async with table_of(broker, 3, on_broken=lambda _: None) as (table, _):
        table.by_id[TOPIC_ID, 1].found_bug(AssertionError("a bug"))
        wanted = [(TOPIC_ID, index) for index in (0, 1, 2, 7)]
        assert list(table.log_ends(wanted)) == [
            (TopicIdPartition(TOPIC_ID, PartitionIndex(0)), 0, 3),
            (TopicIdPartition(TOPIC_ID, PartitionIndex(2)), -1, 0),
        ]


def expiring(table: PartitionTable, broker: Broker, *, count: int) -> None:
    """Fill the first log until it has `count` segments, and let retention apply to all closed
    ones.
    """
    log = table.by_id[TOPIC_ID, 0].log
    log.config = replace(CONFIG, segment_bytes=600, retention_bytes=0)
    while log.segment_count < count:
        broker.append(3, value_bytes=100)


async def test_a_leader_whose_segments_expire_tells_its_followers_where_the_log_begins() -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, table):
        host = table.by_id[TOPIC_ID, 0]
        host.log.config = replace(CONFIG, segment_bytes=600, retention_bytes=0)
        while host.log.segment_count < 3:
            assert produce(partitions, batch(0, count=3, value_bytes=100)).error is ErrorCode.NONE
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        start = host.log.log_start_offset
        assert start > 0
        assert host.replica.log_start == start
        assert read(partitions, start - 1).error is ErrorCode.OFFSET_OUT_OF_RANGE
        found = await partitions.find(TOPIC, PARTITION).offset_at(OFFSET_EARLIEST)  # type: ignore[union-attr]
        assert found.offset == start


async def test_retention_that_the_disk_fails_ends_for_all_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, reasons = memory_broker(CONFIG), list[str]()
    async with table_of(broker, 2, on_offline=reasons.append) as (table, _):
        expiring(table, broker, count=3)
        first = table.by_id[TOPIC_ID, 0]
        first.log.set_high_watermark(first.log.log_end_offset)
        fail(broker, "rename")
        asked: list[object] = []
        monkeypatch.setattr(ProducerStates, "expire", lambda states, **times: asked.append(states))
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        assert len(reasons) == 1
        assert asked == []
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        assert (len(reasons), asked) == (1, [])


async def test_retention_passes_over_a_replica_that_a_bug_ended() -> None:
    broker = memory_broker(CONFIG)
    async with table_of(broker, 2, on_broken=lambda _: None) as (table, _):
        expiring(table, broker, count=3)
        first = table.by_id[TOPIC_ID, 0]
        first.log.set_high_watermark(first.log.log_end_offset)
        first.found_bug(AssertionError("a bug"))
        list(table.apply_retention(wall_ms=table.clock.wall_ms()))
        assert first.log.segment_count == 3


async def test_a_produce_that_was_being_checked_when_its_replica_left_is_refused() -> None:
    broker = memory_broker(CONFIG)
    async with leading(broker) as (partitions, table):
        host = table.by_id[TOPIC_ID, 0]
        outcomes: list[ProduceOutcome] = []
        host.log.config = replace(CONFIG, max_message_bytes=8 << 20)
        large = batch(0, value_bytes=LARGE_BYTES_MIN)
        host.produce(large, acks=1, timeout_ms=60_000, on_done=outcomes.append)
        assert outcomes == []
        change(table, RemoveTopic(topic_id=TOPIC_ID))
        await until(lambda: bool(outcomes))
        assert outcomes == [ProduceOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert partitions.find(TOPIC, PARTITION) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Stream:
    """A leader's stream to a follower, which records the notifications about a partition."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def send(self, host: Any, effect: Any) -> None:
        self.told.append(type(effect).__name__)

    def mark_due(self, host: Any) -> None:
        self.told.append("due")

    def forget(self, host: Any) -> None:
        self.told.append("forget")


@pytest.mark.parametrize("end", ["removed", "deposed", "detached", "closed"])
async def test_a_followers_stream_hears_of_new_records_until_the_end(end: str) -> None:
    both = PartitionChange(topic_id=TOPIC_ID, partition=PARTITION, isr=(OTHER, OWN))
    async with leading(memory_broker(CONFIG)) as (partitions, table):
        change(table, both)
        host = table.by_id[TOPIC_ID, 0]
        stream: Any = Stream()
        table.leader_streams[FOLLOWER] = stream
        host.step(
            ev.AttachReceived(
                session=FOLLOWER,
                attach_seq=1,
                leader_epoch=LeaderEpoch(2),
                log_end=Offset(5),
                last_epoch=LeaderEpoch(2),
                log_start=Offset(0),
            )
        )
        assert "SendAttached" in stream.told
        stream.told.clear()
        produce_one(partitions)
        assert "due" in stream.told
        stream.told.clear()
        if end == "removed":
            change(table, RemoveTopic(topic_id=TOPIC_ID))
        elif end == "deposed":
            change(table, led_by(OTHER))
            change(table, led_by(OWN))
        elif end == "detached":
            host.detached(FOLLOWER)
        else:
            host.session_closed(FOLLOWER)
        # A stream that is told to refuse the follower forgets the partition, too.
        is_told = bool({"forget", "SendRefused"} & {*stream.told})
        assert is_told == (end != "closed")
        stream.told.clear()
        if end != "removed":
            produce_one(partitions)
        assert "due" not in stream.told


def produce_one(partitions: Any) -> None:
    outcomes: list[ProduceOutcome] = []
    host = partitions._table.by_id[TOPIC_ID, 0]
    host.produce(batch(0), acks=1, timeout_ms=1_000, on_done=outcomes.append)
    assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]


async def test_a_follower_with_an_empty_log_begins_with_the_batch_that_contains_its_start() -> None:
    broker = memory_broker(CONFIG)
    broker.log.reset_to(Offset(5))
    async with table_of(broker, 1) as (table, _):
        host = table.by_id[TOPIC_ID, 0]
        host.step(ev.SessionReady(session_id=1, leader=OTHER))
        host.step(
            ev.AttachedReceived(
                session_id=1,
                attach_seq=1,
                leader_epoch=LeaderEpoch(0),
                high_watermark=Offset(5),
                log_start=Offset(5),
            )
        )
        host.data_received(
            session_id=1,
            leader_epoch=LeaderEpoch(0),
            base_offset=Offset(5),
            high_watermark=Offset(5),
            log_start=Offset(5),
            records=batch(3, count=4),
        )
        assert host.replica.role is Role.FOLLOWER
        assert host.log.log_end_offset == 7
        assert broker.files(".log")[0].name == f"{3:020d}.log"
