"""Truncations: removed records do not come back after a crash, and the rest of the log stays consistent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from odradek_broker.log.directory.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import TruncateJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import StorageFailed
from odradek_protocol.identity import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.log.material import PARTITION, PATH, TOPIC_ID, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0)
US = TopicIdPartition(TOPIC_ID, PARTITION)


@pytest.mark.parametrize("seed", range(30))
def test_what_replaced_a_cut_tail_is_read_again_after_a_power_cut(seed: int) -> None:
    broker = memory_broker(CONFIG)
    for _ in range(6):
        broker.append(5, leader_epoch=1)
    broker.checkpoint()
    broker.log.truncate_to(Offset(10))
    fresh = [broker.append(5, leader_epoch=2, value_bytes=45) for _ in range(4)]
    broker.lose_power_and_start(Random(seed))
    end = broker.log.log_end_offset
    assert end in (10, 15, 20, 25, 30)
    assert broker.read_all().endswith(b"".join(fresh[: (end - 10) // 5]))
    expected = [(1, 0), (2, 10)] if end > 10 else [(1, 0)]
    assert broker.log.epochs.entries() == expected


def test_the_recovery_point_on_disk_is_lowered_before_the_log_is_cut() -> None:
    broker = memory_broker(CONFIG)
    for _ in range(6):
        broker.append(5)
    broker.checkpoint()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    broker.log.truncate_to(Offset(10))
    storage.kill_process()
    assert OffsetCheckpoint(storage, PATH / RECOVERY_POINTS).read() == {US: 10}


def test_a_write_of_offsets_gathered_before_a_lowering_is_left_out() -> None:
    storage = MemoryStorage()
    storage.make_directory(PATH)
    checkpoint = OffsetCheckpoint(storage, PATH / RECOVERY_POINTS)
    assert checkpoint.write({US: Offset(30)}, checkpoint.ticket())
    ticket = checkpoint.ticket()
    checkpoint.lower(US, Offset(10))
    assert not checkpoint.write({US: Offset(30)}, ticket)
    assert OffsetCheckpoint(storage, PATH / RECOVERY_POINTS).read() == {US: 10}
    checkpoint.lower(US, Offset(20))
    assert OffsetCheckpoint(storage, PATH / RECOVERY_POINTS).read() == {US: 10}, "never raised"
    checkpoint.lower(US, None)
    assert OffsetCheckpoint(storage, PATH / RECOVERY_POINTS).read() == {}


@pytest.mark.parametrize("restart", ["stop", "kill", "power"])
def test_epochs_written_by_a_cut_are_brought_up_to_date_by_the_next_full_sync(
    restart: str,
) -> None:
    broker = memory_broker(CONFIG)
    broker.append(5, leader_epoch=1)
    broker.append(5, leader_epoch=2)
    broker.log.truncate_to(Offset(5))
    broker.append(5, leader_epoch=4)
    broker.append(5, leader_epoch=7)
    broker.checkpoint()
    if restart == "stop":
        broker.stop_and_start()
    elif restart == "kill":
        broker.kill_and_start()
    else:
        broker.lose_power_and_start()
    assert broker.log.epochs.entries() == [(1, 0), (4, 5), (7, 10)]


def test_a_cut_at_the_end_forgets_epochs_without_records() -> None:
    broker = memory_broker(CONFIG)
    data = broker.append(5, leader_epoch=1)
    broker.log.assign_epoch(LeaderEpoch(6))
    broker.log.truncate_to(Offset(5))
    assert broker.log.epochs.entries() == [(1, 0)]
    assert broker.read_all() == data


def test_producers_are_rolled_back_with_the_log() -> None:
    broker = memory_broker(CONFIG)
    log = broker.log
    for number in range(12):
        data = batch(
            log.log_end_offset,
            count=2,
            producer_id=5,
            producer_epoch=0,
            base_sequence=2 * number,
            transactional=number >= 7,
        )
        log.append(data, now_ms=0)
    assert log.segment_count > 2
    broker.sync(full=True)
    log.truncate_to(Offset(16))
    assert next(iter(log.producers.ongoing().values())) == 14
    checked = log.producers.check(ProducerId(5), ProducerEpoch(0), 16, 17, is_transactional=True)
    assert checked is ErrorCode.NONE
    log.truncate_to(Offset(14))
    assert not log.producers.ongoing()
    entry = log.producers.entry(ProducerId(5))
    assert entry is not None
    assert [stored.base_sequence for stored in entry.batches][-2:] == [10, 12]
    broker.kill_and_start()
    assert broker.log.producers.entry(ProducerId(5)) is not None
    assert not broker.log.producers.ongoing()


def test_a_cut_below_the_first_segment_begins_the_log_there() -> None:
    broker = memory_broker(CONFIG)
    broker.log.reset_to(Offset(100))
    broker.append(5)
    broker.log.truncate_to(Offset(40))
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (40, 40)
    broker.append(5)
    broker.kill_and_start()
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (40, 45)


def test_a_batch_is_cut_whole_or_not_at_all() -> None:
    broker = memory_broker(CONFIG)
    data = broker.append(5)
    broker.append(5)
    broker.log.truncate_to(Offset(8))
    assert broker.log.log_end_offset == 5
    assert broker.read_all() == data


def test_a_log_begun_anew_knows_no_producers_of_before() -> None:
    """This also holds if it begins at an offset at which the old log had begun a segment and stored
    its producers.
    """
    broker = memory_broker(LogConfig(segment_bytes=500))
    while broker.log.segment_count < 3:
        end = broker.log.log_end_offset
        broker.append(1, value_bytes=50, producer_id=4, producer_epoch=0, base_sequence=end)
    rolled_at = Offset(broker.log._segments.bases[1])
    broker.log.reset_to(rolled_at)
    assert len(broker.log.producers) == 0
    broker.append(1)
    broker.checkpoint()
    broker.log.truncate_to(rolled_at)
    assert len(broker.log.producers) == 0


@pytest.mark.parametrize("interval_bytes", [1, 10_000])
def test_a_cut_keeps_the_greatest_timestamp_of_what_is_left(interval_bytes: int) -> None:
    """This includes batches after the last entry of the time index."""
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=interval_bytes)
    broker = memory_broker(config)
    for timestamp_ms in (1_000, 5_000, 2_000, 9_000):
        broker.append(1, timestamp_ms=timestamp_ms)
    log = broker.log
    log.truncate_to(Offset(3))
    for _ in range(2):
        greatest = log.max_timestamp_offset()
        assert greatest is not None
        assert (greatest.timestamp_ms, greatest.offset) == (5_000, 1)
        found = log.offset_for_timestamp(1_500)
        assert found is not None
        assert (found.timestamp_ms, found.offset) == (5_000, 1)
        assert log.offset_for_timestamp(5_001) is None
        broker.append(1, timestamp_ms=3_000)
    log.truncate_to(Offset(1))
    greatest = log.max_timestamp_offset()
    assert greatest is not None
    assert (greatest.timestamp_ms, greatest.offset) == (1_000, 0)


def test_a_cut_segment_rolls_by_the_age_of_its_first_batch() -> None:
    broker = memory_broker(LogConfig(segment_bytes=10_000, segment_ms=1_000))
    for timestamp_ms in (5_000, 5_500):
        broker.append(1, timestamp_ms=timestamp_ms)
    broker.log.truncate_to(Offset(1))
    broker.append(1, timestamp_ms=6_000)
    assert broker.log.segment_count == 1
    broker.append(1, timestamp_ms=6_001)
    assert broker.log.segment_count == 2


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("truncating", lambda log: log.truncate_to(Offset(5))),
        ("resetting", lambda log: log.reset_to(Offset(50))),
        ("syncing", lambda log: log.sync_at_close()),
        ("looking for a timestamp in", lambda log: log.offset_for_timestamp(1_003)),
    ],
)
def test_an_error_of_the_disk_says_what_failed_in_which_log(
    operation: str, act: Callable[[PartitionLog], object]
) -> None:
    broker = memory_broker(CONFIG)
    broker.append(5)
    broker.append(5)
    broker.log.close()

    def fault(operation: str, path: Path) -> None:
        raise OSError(errno.EIO, "injected")

    assert isinstance(broker.storage, MemoryStorage)
    broker.storage.fault = fault
    with pytest.raises(StorageFailed, match=f"^{operation} {broker.log.directory}: "):
        act(broker.log)


def test_a_truncation_between_two_batches_is_no_loss_at_the_next_start() -> None:
    """Compaction leaves offsets without records. The high watermark may be among them."""
    broker = memory_broker()
    for base in (0, 10):
        broker.log.append(batch(base), now_ms=0)
    broker.log.set_high_watermark(Offset(5))
    broker.checkpoint()
    broker.log.truncate_to(Offset(5))
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == ()
    assert broker.log.log_end_offset == 1


def test_a_checkpoint_during_a_truncation_does_not_raise_the_high_watermark_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint begins after the offsets in the files were lowered, and before the log is truncated."""
    broker = memory_broker()
    for base in (0, 10):
        broker.log.append(batch(base), now_ms=0)
    broker.log.set_high_watermark(Offset(5))
    broker.checkpoint()
    truncation = broker.log.begin_truncate(Offset(5))
    assert isinstance(truncation, TruncateJob)
    lower = truncation.lower_checkpoints

    def lower_and_checkpoint(offset: Offset, high_watermark_max: Offset | None) -> None:
        lower(offset, high_watermark_max)
        checkpoint = broker.directory.begin_checkpoint()
        checkpoint.run()
        assert checkpoint.error is None
        assert not checkpoint.is_outdated

    monkeypatch.setattr(truncation, "lower_checkpoints", lower_and_checkpoint)
    truncation.run()
    assert truncation.error is None
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == ()
    assert broker.log.log_end_offset == 1
