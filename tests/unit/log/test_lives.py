"""A process opens the files that an earlier process has written, and treats only synced bytes as durable."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek_broker.log.directory.restart_markers import RestartClass
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import BrokerEpoch, Offset, PartitionIndex
from tests.unit.log.compacted_logs import CONFIG as COMPACTED
from tests.unit.log.compacted_logs import compact, put
from tests.unit.log.material import PARTITION, PATH, TOPIC, TOPIC_ID, Broker, memory_broker
from tests.worlds.memory_storage import MemoryStorage


class Killed(BaseException):
    """The process was killed at this point."""


def storage_of(broker: Broker) -> MemoryStorage:
    assert isinstance(broker.storage, MemoryStorage)
    return broker.storage


def kill_within(broker: Broker, operations: int, work: Callable[[], object]) -> bool:
    """Kill the process after this many disk operations of `work`; the last write is torn.

    Return whether `work` had completed before.
    """
    storage = storage_of(broker)
    last = storage.operations + operations

    def stop(operation: str, path: Path) -> int | None:
        if storage.operations > last + 1 or (storage.operations > last and operation != "write"):
            raise Killed
        return 30 if storage.operations == last + 1 else None

    storage.fault = stop
    try:
        work()
    except Killed:
        return False
    finally:
        storage.fault = None
    return True


def lives(broker: Broker) -> Iterator[None]:
    """Run all operations that change a log's files, and yield after each step."""
    for number in range(6):
        broker.append(3, value_bytes=200, leader_epoch=1 + number // 3)
        yield
        broker.sync(full=number == 3)
        yield
    broker.checkpoint()
    yield
    broker.append(3, value_bytes=200, leader_epoch=2)
    broker.log.truncate_to(Offset(12))
    yield
    broker.append(4, value_bytes=200, leader_epoch=3)
    broker.append(4, value_bytes=200, leader_epoch=3)
    yield
    broker.sync()
    yield
    broker.log.reset_to(Offset(100))
    yield
    for _ in range(3):
        broker.append(3, value_bytes=200, leader_epoch=4)
        yield
    broker.checkpoint()
    broker.directory.close(broker_epoch=BrokerEpoch(7))


@pytest.mark.parametrize("syncs", [True, False])
def test_what_a_killed_life_never_synced_the_next_does_not_vouch_for(syncs: bool) -> None:
    """The process is killed within any operation and started again; then the power fails, with or
    without a sync before.
    """
    killed_at = 0
    finished = False
    while not finished:
        killed_at += 1
        broker = memory_broker()
        finished = kill_within(broker, killed_at, lambda b=broker: list(lives(b)))  # type: ignore[misc]
        broker.kill_and_start()
        assert broker.report is not None
        assert not broker.report.damage, killed_at
        log = broker.directory.get(TOPIC_ID, broker.log.partition)
        assert log is not None
        if syncs:
            broker.sync()
            assert log.durable_end_offset == log.log_end_offset, killed_at
        start, end = log.log_start_offset, log.durable_end_offset
        expected = log.read(start, bytes_max=1 << 20, end_offset=end).slices if end > start else ()
        broker.lose_power_and_start()
        assert broker.restart_class in (RestartClass.POWER, RestartClass.CLEAN)
        if end > start:
            assert broker.log.log_end_offset >= end, killed_at
            found = broker.log.read(start, bytes_max=1 << 20, end_offset=end).slices
            assert b"".join(map(bytes, found)) == b"".join(map(bytes, expected)), killed_at
    assert killed_at > 100


def test_a_segment_that_left_unsynced_does_not_return_in_front_of_what_was_synced() -> None:
    """After a power loss its name would come back without its bytes, as a hole in the log."""
    broker = memory_broker()
    broker.append(2, value_bytes=300)
    broker.checkpoint()
    while broker.log.segment_count < 3:
        broker.append(2, value_bytes=300)
    log = broker.log
    unfinished = log.begin_sync()
    assert unfinished is not None
    second = log._segments.all[1].base_offset
    log.truncate_to(log.log_end_offset)  # the sync has nothing to say any more
    unfinished.run()
    log.finish(unfinished)
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(Offset(second))
    assert log.apply_retention(now_ms=0) == 1
    broker.append(2, value_bytes=300)
    broker.sync()
    end = log.log_end_offset
    assert log.durable_end_offset == end
    broker.lose_power_and_start()
    assert broker.log.log_end_offset == end


def test_a_stop_syncs_the_name_of_a_segment_that_an_unfinished_sync_was_to_sync() -> None:
    """When a broker stops, work that waits for a disk thread is dropped."""
    broker = memory_broker()
    broker.append(2, value_bytes=300)
    broker.checkpoint()
    while broker.log.segment_count < 2:
        broker.append(2, value_bytes=300)
    assert broker.log.begin_sync() is not None
    end = broker.log.log_end_offset
    broker.directory.close(broker_epoch=BrokerEpoch(2))
    broker.lose_power_and_start()
    assert broker.restart_class is RestartClass.CLEAN
    assert broker.log.log_end_offset == end


def test_a_checkpoint_while_a_cut_is_under_way_does_not_write_the_old_recovery_point() -> None:
    broker = memory_broker()
    for _ in range(6):
        broker.append(5)
    broker.checkpoint()
    job = broker.log.begin_truncate(Offset(10))
    job.run()
    checkpoint = broker.directory.begin_checkpoint()
    checkpoint.run()
    broker.directory.finish_checkpoint(checkpoint)
    broker.log.finish(job)
    broker.append(5)
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.power_loss == ()
    assert broker.log.durable_end_offset <= 10
    assert broker.log.log_end_offset == 15


def test_a_directory_that_was_formatted_by_a_killed_process_is_there_after_a_power_cut() -> None:
    storage = MemoryStorage()

    def killed(operation: str, path: Path) -> None:
        if operation == "sync" and path == PATH.parent:
            raise Killed

    storage.fault = killed
    with pytest.raises(Killed):
        Broker(storage)
    storage.kill_process()
    broker = Broker(storage)
    broker.append(3)
    broker.sync()
    assert broker.log.durable_end_offset == 3
    assert "meta.properties" in storage.durable_files(PATH)
    broker.lose_power_and_start()
    assert broker.log.log_end_offset == 3


def started_at(offset: int) -> Broker:
    broker = memory_broker()
    for _ in range(4):
        broker.append(5, value_bytes=100)
    broker.checkpoint()
    broker.log.set_high_watermark(Offset(20))
    broker.log.advance_log_start(Offset(offset))
    return broker


def test_a_kill_does_not_undo_delete_records() -> None:
    broker = started_at(7)
    broker.kill_and_start()
    assert broker.log.log_start_offset == 7


@pytest.mark.parametrize("damage", [b"", b"0000", b"00000000000000000019 00000000\n"])
def test_a_log_start_that_a_power_cut_tore_is_not_believed(damage: bytes) -> None:
    broker = started_at(7)
    storage_of(broker).inode(broker.log.directory / "log-start-offset").data[:] = damage
    broker.kill_and_start()
    assert broker.log.log_start_offset == 0


@pytest.mark.parametrize("checkpoints", ["none", "before", "meanwhile"])
def test_a_log_that_begins_anew_below_its_log_start_shows_all_it_has(checkpoints: str) -> None:
    broker = started_at(17)
    if checkpoints != "none":
        broker.checkpoint()
    job = broker.log.begin_reset(Offset(10))
    job.run()
    if checkpoints == "meanwhile":
        meanwhile = broker.directory.begin_checkpoint()
        meanwhile.run()
        broker.directory.finish_checkpoint(meanwhile)
    broker.log.finish(job)
    broker.append(3)
    broker.kill_and_start()
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (10, 13)


def test_a_report_of_a_loss_that_finds_no_room_is_repeated_by_the_next_start() -> None:
    broker = memory_broker(LogConfig())
    broker.registers = False
    broker.lose_power_and_start()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)

    def fault(operation: str, path: Path) -> None:
        if path.name == "running.tmp":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    storage.fault = fault
    assert broker.directory.loss_reported() is not None
    assert not broker.directory.failure
    storage.kill_process()
    broker.start()
    assert broker.restart_class is RestartClass.POWER
    assert broker.directory.loss_reported() is None
    broker.kill_and_start()
    assert broker.restart_class is RestartClass.PROCESS


@pytest.mark.parametrize("is_running", [False, True])
def test_a_replica_that_was_moved_away_and_back_has_no_offsets_of_its_former_log(
    is_running: bool,
) -> None:
    """The new log must be scanned from its start, whatever of the former one was durable."""
    broker = memory_broker(LogConfig())
    for _ in range(20):
        broker.append(2)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    broker.append(2)
    job = broker.directory.begin_checkpoint()
    broker.directory.delete(TOPIC_ID, PARTITION)
    broker.directory.create(TOPIC, TOPIC_ID, PARTITION, broker.config)
    if is_running:
        job.run()
        broker.directory.finish_checkpoint(job)
    for _ in range(30):
        broker.append(2)
    broker.kill_and_start()
    assert broker.report is not None
    assert broker.report.scanned_bytes == broker.log.size_bytes
    assert (broker.log.log_end_offset, broker.log.high_watermark) == (60, 0)


def test_a_kill_after_a_cut_leaves_nothing_above_it_compacted() -> None:
    broker = memory_broker(COMPACTED)
    for _ in range(20):
        put(broker, (b"key", b"v" * 100))
    compact(broker)
    broker.checkpoint()
    assert broker.log.cleaned_offset > 2
    broker.log.truncate_to(Offset(2))
    for _ in range(20):
        put(broker, (b"key", b"v" * 100))
    broker.kill_and_start()
    assert broker.log.cleaned_offset <= 2


class Waited(Exception):
    """The event loop would have waited while another thread writes the file."""


class BusyLock:
    """The lock of a file that another thread is writing."""

    def __enter__(self) -> None:
        raise Waited

    def __exit__(self, *_: object) -> None: ...


def test_a_new_partition_does_not_wait_for_a_checkpoint_that_is_being_written() -> None:
    """The event loop creates partitions, and a write of the files waits for the disk."""
    broker = memory_broker(LogConfig())
    broker.append(2)
    broker.checkpoint()
    files: Any = broker.directory._checkpoints
    for checkpoint in (
        files.recovery_points,
        files.high_watermarks,
        files.log_starts,
        files.cleaned,
    ):
        checkpoint._lock = BusyLock()
    broker.directory.create(TOPIC, TOPIC_ID, PartitionIndex(PARTITION + 1), broker.config)
