"""Retention: which segments are deleted by age, size and log start offset, and which never are."""

from __future__ import annotations

import errno
import time
from functools import partial
from pathlib import Path

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.storage import DiskStorage, StorageFailed
from odradek_protocol.identity import Offset
from odradek_protocol.records.builder import encode_batch
from odradek_protocol.records.codec import Record
from odradek_protocol.records.control import ControlType
from tests.unit.log.compacted_logs import mark, put
from tests.unit.log.material import Broker, memory_broker
from tests.unit.log.test_compaction_crashes import (
    no_fault,
    no_room_for_old_names,
    shown_by_kafkas_consumer,
    stopped_after,
)
from tests.worlds.memory_storage import MemoryStorage

# each batch of 10 records is 1 segment; sizes are equal
BATCH = {"count": 10, "value_bytes": 20}


def filled(config: LogConfig, times_ms: list[int]) -> Broker:
    """Return a log with one segment for each of these timestamps; the last segment is active."""
    broker = memory_broker(config)
    for time_ms in times_ms:
        broker.append(count=10, timestamp_ms=time_ms)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    assert broker.log.segment_count == len(times_ms)
    return broker


def untimed(base_offset: int) -> bytes:
    """Return a batch of 10 records whose producer gave no timestamps."""
    records = [Record(None, b"v" * 20, timestamp_ms=-1)] * 10
    return encode_batch(records, base_offset=base_offset, leader_epoch=0)


def config(**settings: object) -> LogConfig:
    fixed = {"segment_bytes": 400, "file_delete_delay_ms": 100}
    return LogConfig(**(fixed | settings))  # type: ignore[arg-type]


def starts(broker: Broker) -> tuple[int, int]:
    return broker.log.log_start_offset, broker.log.segment_count


@pytest.mark.parametrize(
    ("now_ms", "left"),
    [(1000, (0, 4)), (1509, (0, 4)), (1510, (10, 3)), (2510, (20, 2)), (3510, (30, 1))],
)
def test_closed_segments_leave_by_their_greatest_timestamp(
    now_ms: int, left: tuple[int, int]
) -> None:
    broker = filled(config(retention_ms=500), [1000, 2000, 3000, 4000])
    broker.log.apply_retention(now_ms=now_ms)
    assert starts(broker) == left


def test_the_active_segment_leaves_when_nothing_in_it_is_young() -> None:
    broker = filled(config(retention_ms=500), [1000, 2000])
    assert broker.log.apply_retention(now_ms=9000) == 2
    assert starts(broker) == (20, 1)
    assert broker.log.log_end_offset == 20
    broker.kill_and_start()
    assert starts(broker) == (20, 1)
    broker.append(2)
    assert broker.log.log_end_offset == 22


def test_a_segment_without_timestamps_leaves_by_when_its_file_was_written() -> None:
    broker = memory_broker(config(retention_ms=500))
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    for storage.now_ms in (1000, 2000, 3000):
        broker.log.append(untimed(broker.log.log_end_offset), now_ms=storage.now_ms)
    broker.append(count=10, timestamp_ms=2500)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    assert broker.log.segment_count == 4
    broker.log.apply_retention(now_ms=1500)
    assert starts(broker) == (0, 4)
    broker.log.apply_retention(now_ms=2501)
    assert starts(broker) == (20, 2)
    broker.kill_and_start()
    broker.log.set_high_watermark(broker.log.log_end_offset)
    assert broker.log.apply_retention(now_ms=3500) == 0
    assert broker.log.apply_retention(now_ms=3501) == 2, "not held back any more by the untimed one"


def test_a_file_that_cannot_be_asked_for_its_time_is_the_disks_fault() -> None:
    broker = memory_broker(config(retention_ms=500))
    for _ in range(2):
        broker.log.append(untimed(broker.log.log_end_offset), now_ms=0)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.storage.remove(broker.files(".log")[0])
    with pytest.raises(StorageFailed, match="no such file"):
        broker.log.apply_retention(now_ms=9000)


def test_a_disk_tells_when_a_file_was_written_and_may_be_told_otherwise(tmp_path: Path) -> None:
    storage, path = DiskStorage(), tmp_path / "segment"
    path.write_bytes(b"batches")
    assert abs(storage.modified_ms(path) - time.time_ns() // 1_000_000) < 60_000
    storage.set_modified_ms(path, 123_456_789)
    assert storage.modified_ms(path) == 123_456_789


def test_an_old_segment_behind_a_young_one_stays() -> None:
    broker = filled(config(retention_ms=500), [9000, 1000, 1000])
    assert broker.log.apply_retention(now_ms=9100) == 0


def test_minus_one_keeps_for_ever() -> None:
    broker = filled(config(retention_ms=-1, retention_bytes=-1), [1, 2, 3])
    assert broker.log.apply_retention(now_ms=1 << 60) == 0


def test_nothing_at_or_above_the_high_watermark_leaves() -> None:
    broker = filled(config(retention_ms=1), [1000, 2000, 3000])
    broker.log.high_watermark = Offset(19)
    assert broker.log.apply_retention(now_ms=99_000) == 1
    assert starts(broker) == (10, 2)


@pytest.mark.parametrize(("keep", "left"), [(9.0, 4), (4.0, 4), (3.5, 4), (3.0, 3), (1.2, 2)])
def test_the_oldest_leave_until_the_size_is_kept(keep: float, left: int) -> None:
    broker = filled(config(), [1, 2, 3, 4])
    size_bytes = broker.log.size_bytes // 4
    broker.log.config = config(retention_bytes=int(keep * size_bytes), retention_ms=-1)
    broker.log.apply_retention(now_ms=0)
    assert broker.log.segment_count == left
    assert broker.log.size_bytes >= keep * size_bytes or left == 4, "never below what was asked"


def test_delete_records_frees_whole_segments_whatever_the_policy() -> None:
    compacted = config(cleanup_delete=False, cleanup_compact=True, retention_ms=1)
    broker = filled(compacted, [1, 2, 3, 4])
    assert broker.log.apply_retention(now_ms=99_000) == 0, "age counts with `delete` only"
    broker.log.advance_log_start(Offset(25))
    assert broker.log.apply_retention(now_ms=0) == 2
    assert starts(broker) == (25, 2)
    broker.log.advance_log_start(Offset(12))
    assert broker.log.log_start_offset == 25, "it never falls"
    broker.checkpoint()
    broker.kill_and_start()
    assert starts(broker) == (25, 2)


def test_files_are_removed_after_the_delay_and_readers_may_end_meanwhile() -> None:
    broker = filled(config(retention_ms=500), [1000, 2000, 9000])
    plan = broker.log.plan_read(Offset(0), bytes_max=1, end_offset=Offset(30))
    names = lambda: set(broker.storage.names(broker.log.directory))  # noqa: E731
    broker.log.apply_retention(now_ms=9000)
    assert "00000000000000000000.log" not in names()
    assert "00000000000000000000.log.deleted" in names()
    assert plan.run().size_bytes > 0, "its descriptor outlives the name"
    broker.remove_files(now_ms=50_000)  # of another clock; the delay begins now
    broker.remove_files(now_ms=50_099)
    assert "00000000000000000000.log.deleted" in names()
    broker.remove_files(now_ms=50_100)
    assert not {name for name in names() if name.endswith(".deleted")}


def test_epochs_of_what_left_are_forgotten() -> None:
    broker = memory_broker(config(retention_ms=500))
    for number, epoch in enumerate([0, 1, 1, 2]):
        broker.append(count=10, timestamp_ms=1000 * number, leader_epoch=epoch)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.log.apply_retention(now_ms=2500)
    assert broker.log.epochs.entries() == [(1, 20), (2, 30)]


def no_room(operation: str, path: Path) -> None:
    if operation in ("write", "create", "rename"):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.mark.parametrize("is_all_old", [True, False])
def test_a_full_disk_does_not_keep_what_would_make_room(is_all_old: bool) -> None:
    """There is no space for a new segment, nor for the longer name of one that is deleted."""
    broker = filled(config(retention_ms=500), [1000, 2000, 3000])
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    segments = broker.log.segment_count
    bytes_before = sum(storage.size_bytes(path) for path in broker.files(""))
    storage.fault = no_room
    assert broker.log.apply_retention(now_ms=9000 if is_all_old else 3400) == segments - 1
    assert broker.directory.failure is None
    assert (broker.directory.health.full is not None) is is_all_old
    assert sum(storage.size_bytes(path) for path in broker.files("")) < bytes_before / 2
    storage.fault = None
    broker.directory.health.has_room_again()
    end = broker.log.log_end_offset
    if is_all_old:
        assert broker.log.apply_retention(now_ms=9000) == 1
    broker.append(2)
    broker.kill_and_start()
    assert broker.log.log_end_offset == end + 2


@pytest.mark.parametrize("is_full", [False, True])
def test_a_kill_while_segments_are_deleted_shows_no_aborted_record(is_full: bool) -> None:
    """A segment whose `.log` file is still used after the start needs its transaction index."""
    for fault_at in range(1, 20):
        broker = memory_broker(config(segment_bytes=200, retention_ms=500))
        put(broker, (b"a", b"aborted"), producer_id=7, base_sequence=0, transactional=True)
        mark(broker, 7, ControlType.ABORT)
        put(broker, (b"a", b"later" + b"." * 100), timestamp_ms=5000)
        put(broker, (b"a", b"last" + b"." * 100), timestamp_ms=5000)
        broker.log.set_high_watermark(broker.log.log_end_offset)
        broker.checkpoint()
        work = partial(broker.log.apply_retention, now_ms=5000)
        is_done = stopped_after(
            broker, fault_at, work, no_room_for_old_names if is_full else no_fault
        )
        broker.kill_and_start()
        values = [value for value in shown_by_kafkas_consumer(broker) if value is not None]
        assert b"aborted" not in values, fault_at
        assert len(values) == 2, fault_at
        assert not [n for n in broker.storage.names(broker.log.directory) if "deleted" in n]
        if is_done:
            assert broker.log.log_start_offset == 2
            assert fault_at > 2, "the kill never fell into the deletion"
            return
    raise AssertionError("the deletion never ended")
