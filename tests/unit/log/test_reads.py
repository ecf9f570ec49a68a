"""Reads return whole batches, at least one, never past the end of the range, from memory, page
cache or disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_reads import (
    SLICES_MAX,
    OffsetOutOfRange,
    ReadResult,
    RecentAppends,
    Tail,
)
from odradek_broker.log.storage import DiskStorage, StorageFailed
from odradek_protocol.identity import Offset
from odradek_protocol.records.batch_header import iter_headers
from tests.unit.log.material import Broker, batch, memory_broker, unreadable
from tests.worlds.memory_storage import MemoryStorage

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150, file_delete_delay_ms=0)


def joined(result: ReadResult) -> bytes:
    return b"".join(bytes(part) for part in result.slices)


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=25),
    at_once=st.integers(1, 4),
    start=st.integers(0, 60),
    bytes_max=st.integers(0, 3000),
    bound=st.integers(0, 125),
    source=st.sampled_from(["memory", "page cache", "disk"]),
)
def test_a_read_is_the_longest_run_of_whole_batches_within_its_bounds(
    counts: list[int], at_once: int, start: int, bytes_max: int, bound: int, source: str
) -> None:
    broker = memory_broker(CONFIG)
    parts: list[bytes] = []
    for number in range(0, len(counts), at_once):
        chunk = []
        for count in counts[number : number + at_once]:
            base = broker.log.log_end_offset + sum(
                h.last_offset_delta + 1 for part in chunk for _, h in iter_headers(part)
            )
            chunk.append(batch(base, count=count, value_bytes=40))
        broker.log.append(b"".join(chunk), now_ms=0, retain=source == "memory")
        parts += chunk
    end = broker.log.log_end_offset
    start = min(start, end)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.is_hot = source != "disk"
    plan = broker.log.plan_read(Offset(start), bytes_max=bytes_max, end_offset=Offset(bound))
    if source == "disk" and start < min(bound, end):
        assert not plan.is_hot
    elif start >= min(bound, end):
        assert plan.is_hot
    result = plan.run()
    headers = [next(iter_headers(part))[1] for part in parts]
    wanted = [
        part
        for part, h in zip(parts, headers, strict=True)
        if h.last_offset >= start and h.next_offset <= bound
    ]
    first = next((h for h in headers if h.last_offset >= start), None)
    if first is None or first.next_offset > bound:
        assert result.slices == ()
        assert result.end_offset == start
        return
    data = joined(result)
    assert data == b"".join(wanted)[: len(data)]
    assert len(data) == result.size_bytes
    found = [h for _, h in iter_headers(data)]
    assert sum(h.size_bytes for h in found) == len(data), "only whole batches"
    assert result.start_offset == found[0].base_offset
    assert result.end_offset == found[-1].next_offset
    assert len(data) <= bytes_max or len(found) == 1, "one batch, however long"
    if source != "memory" and result.end_offset < min(bound, end):
        following = next(h for h in headers if h.base_offset == result.end_offset)
        segments = [s.base_offset for s in broker.log._segments.all]
        fits = len(data) + following.size_bytes <= bytes_max
        fits &= following.next_offset <= bound
        assert not fits or following.base_offset in segments, "it stopped early"


def test_a_tail_of_tiny_appends_is_read_from_the_file() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 20))
    for _ in range(SLICES_MAX + 1):
        broker.append()
    end = broker.log.log_end_offset
    result = broker.log.read(Offset(0), bytes_max=1 << 20, end_offset=end)
    assert len(result.slices) == 1
    assert result.end_offset == end


def test_the_tail_costs_no_read_and_no_copy() -> None:
    broker = memory_broker(CONFIG)
    data = batch(0, count=3)
    broker.log.append(data, now_ms=0)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.fault = lambda operation, path: pytest.fail(f"{operation} {path}")
    result = broker.log.read(Offset(0), bytes_max=1, end_offset=Offset(3))
    assert result.slices[0] is data


def test_all_tails_share_one_bound_and_the_oldest_append_goes_first() -> None:
    broker = memory_broker(LogConfig(segment_bytes=1 << 20))
    recent = broker.directory.recent
    recent._bytes_max = 1000
    for _ in range(50):
        broker.append(value_bytes=100)
        assert recent.size_bytes <= 1000
    kept = list(broker.log._tail)
    assert 1 < len(kept) < 10
    assert kept[-1] == 49
    broker.log.truncate_to(Offset(48))
    assert recent.size_bytes == 0
    assert not recent._queue


@pytest.mark.parametrize("offset", [-1, 4, 31])
def test_an_offset_outside_the_log_is_refused_by_name(offset: int) -> None:
    broker = memory_broker(CONFIG)
    for _ in range(10):
        broker.append(3)
    broker.log.set_high_watermark(Offset(30))
    broker.log.advance_log_start(Offset(5))
    with pytest.raises(
        OffsetOutOfRange, match=rf"offset {offset} of flights-0 is not in \[5, 30\]"
    ):
        broker.log.plan_read(Offset(offset), bytes_max=1, end_offset=Offset(30))


@pytest.mark.parametrize("leaves", ["cut", "expired", "deleted", "compacted"])
def test_a_cold_read_of_what_leaves_meanwhile_finds_nothing(leaves: str) -> None:
    broker = memory_broker(replace(CONFIG, cleanup_compact=True, min_cleanable_dirty_ratio=0.0))
    for number in range(20):
        keys = [b"%d" % (number % 3 * 5 + i) for i in range(5)]
        data = batch(broker.log.log_end_offset, count=5, keys=keys, value_bytes=number)
        broker.log.append(data, now_ms=0)
    broker.stop_and_start()
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.is_hot = False
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    log.read(Offset(0), bytes_max=1, end_offset=log.log_end_offset)  # its indexes are in memory
    start = Offset(60) if leaves == "cut" else Offset(0)
    plan = log.plan_read(start, bytes_max=100, end_offset=log.log_end_offset)
    assert not plan.is_hot
    if leaves == "cut":
        log.truncate_to(Offset(10))
    elif leaves == "expired":
        log.advance_log_start(Offset(60))
        assert log.apply_retention(now_ms=0) > 0
    elif leaves == "compacted":
        job = log.begin_compaction(now_ms=0)
        assert job is not None
        while not job.is_done:
            job.run_slice()
            log.install_compacted(job)
    else:
        broker.directory.delete(log.topic_id, log.partition)
    assert plan.run() == ReadResult((), start, start, 0)
    assert broker.directory.failure is None


def test_a_partition_that_is_synced_has_four_descriptors_at_most(tmp_path: Path) -> None:
    broker = Broker(DiskStorage(), tmp_path / "data", CONFIG)
    for _ in range(200):
        broker.append(5, value_bytes=40)
    assert broker.log.segment_count > 20

    def descriptors() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        targets = [str(link.readlink()) for link in links]
        return sum(target.startswith(str(broker.log.directory)) for target in targets)

    broker.sync(full=True)
    assert descriptors() <= 4
    for offset in (*range(0, 900, 7), *range(900, 0, -13)):
        broker.log.read(Offset(offset), bytes_max=300, end_offset=broker.log.log_end_offset)
        assert descriptors() <= 4
    broker.read_all()
    broker.directory.close(broker_epoch=None)
    assert descriptors() == 0


def test_a_real_disk_says_what_is_resident(tmp_path: Path) -> None:
    broker = Broker(DiskStorage(), tmp_path / "data", LogConfig())
    broker.append(100, value_bytes=100)
    log = broker.log
    plan = log.plan_read(Offset(50), bytes_max=100, end_offset=log.log_end_offset)
    assert plan.is_hot, "just written: it is in the page cache"
    assert plan.run().size_bytes > 0
    broker.directory.close(broker_epoch=None)


def test_reads_by_time_open_one_batch_and_honour_the_log_start() -> None:
    broker = memory_broker(CONFIG)
    for number in range(30):
        broker.append(4, timestamp_ms=1000 + 10 * number)
    log = broker.log
    assert log.offset_for_timestamp(0) == (1000, 0, 0)
    assert log.offset_for_timestamp(1002) == (1002, 2, 0)
    assert log.offset_for_timestamp(1004) == (1010, 4, 0)
    assert log.offset_for_timestamp(1293) == (1293, 119, 0)
    assert log.offset_for_timestamp(1294) is None
    assert log.max_timestamp_offset() == (1293, 119, 0)
    log.set_high_watermark(Offset(120))
    log.advance_log_start(Offset(50))
    assert log.offset_for_timestamp(0) == (1122, 50, 0)


@pytest.mark.parametrize("later_ms", [[], [30, 40, 50], [80, 20]])
@pytest.mark.parametrize("log_start", [5, 6, 7, 8])
def test_the_greatest_timestamp_is_looked_for_above_the_log_start(
    later_ms: list[int], log_start: int
) -> None:
    """The greatest timestamp of all, 9,002, lies below the log start."""
    broker = memory_broker(LogConfig(segment_bytes=1_000, index_interval_bytes=0))
    for timestamp_ms in (10, 9_000, 60, 20, *later_ms):
        broker.append(3, timestamp_ms=timestamp_ms, value_bytes=60)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(Offset(log_start))
    times = [t + i for t in (10, 9_000, 60, 20, *later_ms) for i in range(3)]
    greatest = max(times[log_start:])
    expected = (greatest, times.index(greatest, log_start), 0)
    assert log.max_timestamp_offset() == expected


@pytest.mark.parametrize("what", ["noise", "bomb"])
def test_a_batch_that_nobody_can_read_is_found_by_its_header_and_is_not_the_disks_fault(
    what: str,
) -> None:
    broker = memory_broker(CONFIG)
    broker.append(3, timestamp_ms=500)
    broker.log.append(unreadable(3, what), now_ms=0)
    broker.append(1, timestamp_ms=2000)
    log = broker.log
    assert log.offset_for_timestamp(502) == (502, 2, 0)
    assert log.offset_for_timestamp(600) == (1002, 3, 0)
    assert log.offset_for_timestamp(1003) == (2000, 6, 0)
    assert broker.directory.failure is None


def test_a_changed_bit_that_a_read_by_time_meets_is_the_disks_fault() -> None:
    broker = memory_broker(CONFIG)
    broker.append(3, timestamp_ms=500)
    file = broker.storage.open(broker.files(".log")[0])
    file.pwrite(b"?", 80)
    file.close()
    with pytest.raises(StorageFailed, match="CRC"):
        broker.log.offset_for_timestamp(501)


def test_what_is_forgotten_takes_no_room_behind_what_is_kept() -> None:
    recent = RecentAppends(1_000)
    idle: Tail = {}
    busy: Tail = {}
    recent.keep(idle, Offset(0), Offset(1), b"kept")
    for number in range(500):
        recent.keep(busy, Offset(number), Offset(number + 1), b"x")
        if number % 10 == 9:
            recent.forget(busy)  # compacted, or cut
    assert idle[Offset(0)].data == b"kept"
    assert len(recent._queue) < 50
    assert recent.size_bytes == sum(len(one.data or b"") for one in recent._queue) == 4


@pytest.mark.parametrize(
    ("size_bytes", "is_copied"), [(10_000, False), (9_999, True), (1_000, True)]
)
def test_a_small_piece_of_a_large_message_does_not_keep_it_alive(
    size_bytes: int, is_copied: bool
) -> None:
    message = bytearray(320_000)
    recent = RecentAppends(1 << 20)
    tail: Tail = {}
    recent.keep(tail, Offset(0), Offset(1), memoryview(message)[:size_bytes].toreadonly())
    kept = tail[Offset(0)].data
    assert kept == message[:size_bytes]
    assert isinstance(kept, bytes) is is_copied
