"""A process is killed, or a machine loses power, at any step of a compaction."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.records.batch_header import iter_headers
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.control import ControlType, parse_control_record
from tests.unit.log.compacted_logs import (
    CONFIG,
    DAY_MS,
    compact,
    fill,
    mark,
    put,
    records,
)
from tests.unit.log.material import Broker, memory_broker
from tests.worlds.memory_storage import MemoryStorage


def install(log: PartitionLog, job: CompactJob) -> None:
    while not job.is_done:
        job.run_slice()
        log.install_compacted(job)


class Stopped(BaseException):
    """The process was killed at this point."""


def no_fault(operation: str, path: Path) -> None:
    """Fail no operation."""


def stopped_after(
    broker: Broker,
    operations: int,
    work: Callable[[], object],
    fault: Callable[[str, Path], None] = no_fault,
) -> bool:
    """Stop `work` after this many changes of the storage; return whether it had completed
    before. Until then, `fault` may fail each operation.
    """
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    last = storage.operations + operations

    def stop(operation: str, path: Path) -> None:
        if storage.operations > last:
            raise Stopped
        fault(operation, path)

    storage.fault = stop
    try:
        work()
    except Stopped:
        return False
    return True


def committed(broker: Broker) -> dict[bytes, bytes | None]:
    """Return the last value of each key except fillers, as a read_committed reader sees it."""
    log = broker.log
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    data, found = broker.read_all(), dict[bytes, bytes | None]()
    for position, header in iter_headers(data):
        is_aborted = any(
            entry.producer_id == header.producer_id
            and entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in aborted
        )
        if header.is_control or is_aborted or not header.record_count:
            continue
        for record in decode_batch(data, position):
            if record.key is not None and not record.key.startswith(b"filler"):
                found[record.key] = record.value
    return found


@pytest.mark.parametrize("kind", ["process", "power"])
def test_a_crash_at_any_step_of_a_swap_loses_nothing(kind: str) -> None:
    fault_at = 0
    finished = False
    while not finished:
        fault_at += 1
        broker = memory_broker(CONFIG)
        for number in range(12):
            put(broker, (b"key-%d" % (number % 3), b"%d" % number + b"." * 100))
        fill(broker)
        expected = {r.key: r.value for r in records(broker).values()}
        end = broker.log.log_end_offset
        broker.checkpoint()
        broker.log.set_high_watermark(end)
        broker.log.config = replace(CONFIG, segment_bytes=1_500)  # several become one
        job = broker.log.begin_compaction(now_ms=DAY_MS)
        assert job is not None

        def swap(job: CompactJob = job, broker: Broker = broker) -> None:
            install(broker.log, job)
            broker.remove_files(now_ms=DAY_MS)

        finished = stopped_after(broker, fault_at, swap)
        if kind == "process":
            broker.kill_and_start()
        else:
            broker.lose_power_and_start()
        assert broker.report is not None
        assert not broker.report.power_loss, fault_at
        assert broker.log.log_end_offset == end, fault_at
        assert {r.key: r.value for r in records(broker).values()} == expected, fault_at
        names = broker.storage.names(broker.log.directory)
        assert not [n for n in names if n.endswith((".swap", ".cleaned", ".deleted"))], names
    assert fault_at > 20, "the fault never fell into the swap"


def test_power_may_go_after_any_of_the_renames_of_a_swap() -> None:
    """The renames are not synced; a file system keeps the first ones, in their order."""
    kept = -1
    while True:
        kept += 1
        broker = memory_broker(CONFIG)
        for number in range(24):
            put(broker, (b"key-%d" % (number % 3), b"%d" % number + b"." * 100))
        fill(broker)
        expected = {r.key: r.value for r in records(broker).values()}
        end = broker.log.log_end_offset
        broker.log.set_high_watermark(end)
        broker.checkpoint()
        broker.log.config = replace(CONFIG, segment_bytes=1_500)  # several become one
        assert compact(broker, now_ms=DAY_MS) is not None
        storage = broker.storage
        assert isinstance(storage, MemoryStorage)
        is_all = kept > len(storage._directory(broker.log.directory).changes)
        storage.lose_power(changes_kept=kept)
        broker.boot_id = "another"
        broker.start()
        assert broker.report is not None
        assert not broker.report.power_loss, kept
        assert broker.log.log_end_offset == end, kept
        assert {r.key: r.value for r in records(broker).values()} == expected, kept
        assert all(path.suffix != ".swap" for path in broker.files(""))
        if is_all:
            break
    assert kept > 20


@pytest.mark.parametrize("position", [0, 7, 20, 45, -30, -1, None])
def test_a_compacted_segment_that_the_disk_damaged_is_given_up(position: int | None) -> None:
    """The disk has changed a byte at `position`, or has lost all bytes (None). The original segments
    are still used if the first of them exists; otherwise the log is truncated there.
    """
    outcomes = set()
    for fault_at in range(1, 100):
        broker = memory_broker(CONFIG)
        for number in range(12):
            put(broker, (b"key-%d" % (number % 3), b"%d" % number + b"." * 100))
        fill(broker)
        expected = {r.key: r.value for r in records(broker).values()}
        end = broker.log.log_end_offset
        broker.log.set_high_watermark(end)
        broker.checkpoint()
        broker.log.config = replace(CONFIG, segment_bytes=1_500)  # several become one
        job = broker.log.begin_compaction(now_ms=DAY_MS)
        assert job is not None
        is_done = stopped_after(broker, fault_at, partial(install, broker.log, job))
        swaps = [path for path in broker.files(".swap") if ".log" in path.name]
        for path in swaps:
            assert isinstance(broker.storage, MemoryStorage)
            data = broker.storage.inode(path).data
            if position is None:
                data.clear()
            else:
                data[position] ^= 0x40
        is_begun = [s for s in swaps if not broker.storage.exists(s.with_suffix(""))]
        broker.kill_and_start()
        report = broker.report
        assert report is not None
        assert bool(report.damage) == bool(swaps), fault_at
        outcomes.add((bool(swaps), bool(is_begun)))
        assert bool(report.power_loss) == bool(is_begun), fault_at
        if not is_begun:
            assert broker.log.log_end_offset == end, fault_at
            assert {r.key: r.value for r in records(broker).values()} == expected, fault_at
        if is_done:
            break
    assert outcomes == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_crash_at_any_step_of_a_swap_keeps_what_was_aborted_apart(is_damaged: bool) -> None:
    """An aborted record after the end of the compaction pass is kept, so the index entry that marks
    it as aborted must be kept, too. With `is_damaged`, the start finds the new segment damaged, and
    uses the old one.
    """
    for fault_at in range(1, 100):
        broker = memory_broker(CONFIG)
        for key, value in ((b"a", b"old"), (b"a", b"new"), (b"b", b"only")):
            put(broker, (key, value))
        put(broker, (b"b", b"aborted"), producer_id=7, base_sequence=0, transactional=True)
        mark(broker, 7, ControlType.ABORT)
        fill(broker)
        broker.checkpoint()
        broker.log.set_high_watermark(broker.log.log_end_offset)
        job = broker.log.begin_compaction(now_ms=DAY_MS)
        assert job is not None
        job.keys_max = 2
        is_done = stopped_after(broker, fault_at, partial(install, broker.log, job))
        for path in broker.files(".swap") if is_damaged else ():
            if path.stem.endswith(".log") and broker.storage.exists(path.with_suffix("")):
                assert isinstance(broker.storage, MemoryStorage)
                broker.storage.inode(path).data[45] ^= 0x40
        broker.kill_and_start()
        assert committed(broker) == {b"a": b"new", b"b": b"only"}, fault_at
        if is_done:
            assert [offset for offset in records(broker) if offset < 4] == [1, 2, 3]
            assert fault_at > 5, "the fault never fell into the swap"
            return
    raise AssertionError("the pass never came to its end")


def no_room_for_old_names(operation: str, path: Path) -> None:
    """The disk has no space for the longer names of the segments that a swap replaces."""
    if operation == "rename" and path.suffix in (".log", ".index", ".timeindex", ".txnindex"):
        raise OSError(errno.ENOSPC, "No space left on device")


def shown_by_kafkas_consumer(broker: Broker) -> list[bytes | None]:
    """Return the values that Kafka's read_committed consumer shows, without fillers. It skips all batches of the
    producer of an aborted transaction until it reads an abort marker of that producer.
    """
    log = broker.log
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    waiting = sorted(aborted, key=lambda entry: entry.first_offset)
    data, skipped, values = broker.read_all(), set[int](), list[bytes | None]()
    for position, header in iter_headers(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipped.add(waiting.pop(0).producer_id)
        batch = decode_batch(data, position) if header.record_count else []
        if header.is_control:
            if batch and parse_control_record(batch[0]).type is ControlType.ABORT:
                skipped.discard(header.producer_id)
        elif header.producer_id not in skipped:
            values += [r.value for r in batch if r.key and not r.key.startswith(b"filler")]
    return values


@pytest.mark.parametrize("situation", ["room", "full disk", "expired"])
def test_a_crash_at_any_step_of_a_swap_hides_no_committed_record(situation: str) -> None:
    """The old segment lists an aborted transaction whose records and marker the new segment no
    longer has. With that list, consumers would skip the producer's later, committed records.
    With "expired", retention deletes the old segment while the new one waits for the swap.
    """
    for fault_at in range(1, 100):
        broker = memory_broker(CONFIG)
        put(broker, (b"a", b"aborted"), producer_id=7, base_sequence=0, transactional=True)
        mark(broker, 7, ControlType.ABORT)
        put(broker, (b"a", b"committed"), producer_id=7, base_sequence=1, transactional=True)
        mark(broker, 7, ControlType.COMMIT)
        fill(broker)
        assert compact(broker) is not None  # removes the record of the aborted transaction
        fill(broker)
        broker.checkpoint()
        broker.log.set_high_watermark(broker.log.log_end_offset)
        end = broker.log.log_end_offset
        job = broker.log.begin_compaction(now_ms=3 * DAY_MS)  # removes the marker
        assert job is not None
        work: Callable[[], object] = partial(install, broker.log, job)
        fault = no_fault
        if situation == "full disk":
            fault = no_room_for_old_names
        elif situation == "expired":
            while not job.ready:
                job.run_slice()
            broker.log.config = replace(CONFIG, cleanup_delete=True, retention_ms=DAY_MS)
            work = partial(broker.log.apply_retention, now_ms=3 * DAY_MS)
        is_done = stopped_after(broker, fault_at, work, fault)
        broker.kill_and_start()
        assert broker.report is not None
        assert not broker.report.damage, (fault_at, broker.report)
        assert broker.log.log_end_offset == end, fault_at
        if situation != "expired" or broker.log.log_start_offset == 0:
            assert shown_by_kafkas_consumer(broker) == [b"committed"], fault_at
        if is_done:
            assert not broker.log.aborted_transactions(0, broker.log.log_end_offset)
            assert fault_at > 5, "the fault never fell into the swap"
            return
    raise AssertionError("the pass never came to its end")
