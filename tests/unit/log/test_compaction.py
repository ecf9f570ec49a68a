"""Compaction keeps the last value of each key, with its offset, and removes the earlier values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from odradek_broker.log import compaction
from odradek_broker.log.log_config import LogConfig
from odradek_protocol.identity import Offset
from odradek_protocol.records.batch_header import (
    DELETE_HORIZON_MASK,
    Compression,
    check_crc,
    iter_headers,
)
from odradek_protocol.records.control import ControlType
from tests.unit.log.compacted_logs import (
    CONFIG,
    DAY_MS,
    compact,
    fill,
    headers,
    mark,
    put,
    records,
    shown,
)
from tests.unit.log.material import memory_broker, unreadable
from tests.worlds.memory_storage import MemoryStorage


@pytest.mark.parametrize("compression", list(Compression))
def test_only_the_last_value_of_a_key_stays_with_its_offset_and_time(
    compression: Compression,
) -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), compression=compression)
    put(broker, (b"a", b"4"), timestamp_ms=2000, compression=compression)
    put(broker, (b"c", b"5"), (b"a", b"6"), timestamp_ms=3000, compression=compression)
    fill(broker)
    compact(broker)
    assert shown(broker) == [(1, b"b", b"2"), (4, b"c", b"5"), (5, b"a", b"6")]
    assert [records(broker)[o].timestamp_ms for o in (1, 4, 5)] == [1000, 3000, 3000]


def test_a_deleted_key_stays_deleted_though_a_segment_expires_during_the_compaction() -> None:
    """The segment with the old value cannot be replaced any more, so the tombstone must outlive it."""
    broker = memory_broker(replace(CONFIG, segment_ms=100))
    log = broker.log
    put(broker, (b"first", b"1"), timestamp_ms=0)
    put(broker, (b"key", b"old"), timestamp_ms=1000)
    put(broker, (b"long", b"v" * 500), timestamp_ms=2000)
    put(broker, (b"key", None), timestamp_ms=3000)
    fill(broker)
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    job = log.begin_compaction(now_ms=DAY_MS)
    assert job is not None
    while not job.ready:
        job.run_slice(0)
    assert [segment.base_offset for segment in job.ready[0].old][:2] == [0, 1]
    log.advance_log_start(Offset(1))
    assert log.apply_retention(now_ms=DAY_MS) == 1
    log.install_compacted(job)
    while not job.is_done:
        job.run_slice(0)
        log.install_compacted(job)
    for days in (2, 4, 6):
        fill(broker)
        compact(broker, now_ms=days * DAY_MS)
    assert [key for _, key, _ in shown(broker)] == [b"long"]
    assert not broker.files(".cleaned")


def test_a_pass_goes_on_when_all_of_a_run_has_expired() -> None:
    """If it ended, a log whose segments expire faster than a pass takes would never be compacted."""
    broker = memory_broker(CONFIG)
    log = broker.log
    put(broker, (b"key", b"1"), (b"key", b"2"), (b"pad", b"v" * 450))
    fill(broker)
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    job = log.begin_compaction(now_ms=DAY_MS)
    assert job is not None
    job.segment_bytes = 1
    expired = 0
    while not job.is_done:
        job.run_slice(0)
        if job.ready and not expired:
            log.advance_log_start(Offset(job.ready[0].old[-1].end_offset))
            expired = log.apply_retention(now_ms=DAY_MS)
        log.install_compacted(job)
    assert expired == 1
    assert log.cleaned_offset == job.segments[-1].end_offset


def test_a_tombstone_that_is_kept_for_ever_can_be_compacted() -> None:
    """delete.retention.ms may be the largest LONG, and the time at which the tombstone may go is later still."""
    broker = memory_broker(replace(CONFIG, delete_retention_ms=(1 << 63) - 1))
    put(broker, (b"a", b"1"), (b"a", None))
    for days in (1, 1000):
        fill(broker)
        compact(broker, now_ms=days * DAY_MS)
        assert shown(broker) == [(1, b"a", None)]


def test_a_tombstone_outlives_a_batch_that_is_too_large_to_be_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "RECORDS_MAX", 2)
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    put(broker, (b"a", None))
    for days in (1, 3, 5):
        fill(broker)
        compact(broker, now_ms=days * DAY_MS)
    assert (3, b"a", None) in shown(broker)


@pytest.mark.parametrize("timestamp_ms", [-(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("delete_retention_ms", [0, DAY_MS, (1 << 63) - 1])
def test_no_timestamp_of_a_client_ends_a_compaction(
    timestamp_ms: int, delete_retention_ms: int
) -> None:
    broker = memory_broker(replace(CONFIG, delete_retention_ms=delete_retention_ms))
    put(broker, (b"a", b"1"), (b"b", None), (b"c", b"2"), timestamp_ms=timestamp_ms)
    put(broker, (b"a", b"3"))
    fill(broker)
    compact(broker)
    assert shown(broker) == [(1, b"b", None), (2, b"c", b"2"), (3, b"a", b"3")]


def test_records_without_a_key_go() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (None, b"nobody asks for it"), (b"a", b"1"))
    fill(broker)
    compact(broker)
    assert shown(broker) == [(1, b"a", b"1")]


def test_a_later_pass_knows_only_new_records_and_still_outdates_old_ones() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), (b"b", b"2"))
    fill(broker)
    compact(broker)
    cleaned = broker.log.cleaned_offset
    assert cleaned > 0
    put(broker, (b"a", b"3"))
    fill(broker)
    job = compact(broker)
    assert job is not None
    assert job.dirty_offset == cleaned
    assert [entry[1:] for entry in shown(broker)] == [(b"b", b"2"), (b"a", b"3")]


def test_a_full_map_ends_the_pass_early_and_loses_nothing() -> None:
    broker = memory_broker(CONFIG)
    for number in range(40):
        put(broker, (b"key-%d" % (number % 7), b"%d" % number + b"." * 100))
    fill(broker)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    before = {r.key: r.value for r in records(broker).values()}
    for _ in range(20):
        job = log.begin_compaction(now_ms=DAY_MS)
        if job is None:
            break
        job.keys_max = 3
        while not job.is_done:
            job.run_slice()
            log.install_compacted(job)
    assert {r.key: r.value for r in records(broker).values()} == before
    assert len(shown(broker)) < 20


def test_a_map_that_fills_within_a_segment_ends_there() -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=20_000))
    for number in range(100):
        put(broker, (b"key-%d" % (number % 50), b"%d" % number + b"." * 100))
    fill(broker)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    before = {r.key: r.value for r in records(broker).values()}
    passes = greatest = 0
    while (job := log.begin_compaction(now_ms=DAY_MS)) is not None:
        job.keys_max = 10
        while not job.is_done:
            job.run_slice(0)
            greatest = max(greatest, len(job._map))
            log.install_compacted(job)
        passes += 1
    assert greatest == 10, "the map holds no more than it may, in however large a segment"
    assert passes > 5
    assert {r.key: r.value for r in records(broker).values()} == before
    assert len(shown(broker)) == 50


def test_a_tombstone_beyond_a_full_map_is_not_touched_yet() -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=2_000))
    put(broker, (b"a", b"1"))
    for number in range(5):
        put(broker, (b"key-%d" % number, b"x"))
    put(broker, (b"a", None))
    fill(broker)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    broker.sync(full=True)
    job = log.begin_compaction(now_ms=DAY_MS)
    assert job is not None
    job.keys_max = 3
    while not job.is_done:
        job.run_slice()
        log.install_compacted(job)
    headers = [header for _, header in iter_headers(broker.read_all())]
    (tombstone,) = (header for header in headers if header.base_offset == 6)
    assert not tombstone.attributes & DELETE_HORIZON_MASK, "its value is still there"
    compact(broker)
    assert (0, b"a", b"1") not in shown(broker)
    assert (6, b"a", None) in shown(broker)


@pytest.mark.parametrize("what", ["noise", "bomb", "too many"])
def test_a_batch_that_nobody_can_read_stays_and_stops_nothing(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = memory_broker(replace(CONFIG, segment_bytes=4_000))
    put(broker, (b"a", b"1"))
    unread = unreadable(broker.log.log_end_offset, what)
    if what == "too many":
        monkeypatch.setattr(compaction, "RECORDS_MAX", 2)
    broker.log.append(unread, now_ms=1000)
    put(broker, (b"a", b"2"))
    fill(broker)
    compact(broker)
    assert broker.directory.failure is None, "the disk is well"
    data = broker.read_all()
    assert unread in data
    assert [(h.base_offset, h.record_count) for _, h in iter_headers(data)][:2] == [(1, 3), (4, 1)]


def test_a_tombstone_stays_until_its_delete_horizon_then_goes() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"))
    put(broker, (b"a", None), (b"b", b"2"), timestamp_ms=5000)
    fill(broker)
    compact(broker, now_ms=DAY_MS)
    assert shown(broker) == [(1, b"a", None), (2, b"b", b"2")]
    assert records(broker)[1].timestamp_ms == 5000, "the horizon must not change timestamps"
    put(broker, (b"c", b"3"))
    fill(broker)
    compact(broker, now_ms=2 * DAY_MS - 1)
    assert (1, b"a", None) in shown(broker), "a reader that is not a day late must see it"
    put(broker, (b"d", b"4"))
    fill(broker)
    compact(broker, now_ms=2 * DAY_MS)
    assert [entry[1:] for entry in shown(broker)] == [(b"b", b"2"), (b"c", b"3"), (b"d", b"4")]


def test_records_of_an_aborted_transaction_go_and_outdate_nothing() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"committed"))
    put(broker, (b"a", b"aborted"), producer_id=7, base_sequence=0, transactional=True)
    mark(broker, 7, ControlType.ABORT)
    put(broker, (b"b", b"kept"), producer_id=8, base_sequence=0, transactional=True)
    mark(broker, 8, ControlType.COMMIT)
    fill(broker)
    compact(broker)
    assert shown(broker) == [(0, b"a", b"committed"), (3, b"b", b"kept")]


def test_a_marker_stays_while_records_of_its_transaction_do() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    kept = mark(broker, 7, ControlType.COMMIT)
    put(broker, (b"b", b"2"), producer_id=8, base_sequence=0, transactional=True)
    outdated = mark(broker, 8, ControlType.COMMIT)
    put(broker, (b"b", b"3"), producer_id=8, base_sequence=1)  # or the last one stays as a header
    fill(broker)
    compact(broker, now_ms=DAY_MS)
    counts = {base: count for base, _, count in headers(broker)}
    assert counts[kept] == 1
    assert counts[outdated] == 1, "it gets a delete horizon first"
    put(broker, (b"x", b"9"))
    fill(broker)
    compact(broker, now_ms=3 * DAY_MS)
    counts = {base: count for base, _, count in headers(broker)}
    assert counts[kept] == 1
    assert outdated not in counts


def test_a_producers_last_batch_stays_as_a_header() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=41)
    put(broker, (b"a", b"2"))
    fill(broker)
    compact(broker)
    assert (0, 0, 0) in headers(broker)
    assert shown(broker) == [(1, b"a", b"2")]
    broker.kill_and_start()
    entry = broker.log.producers.entry(7)  # type: ignore[arg-type]
    assert entry is not None
    assert entry.batches[-1].last_sequence == 41


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("foreign", [AiokafkaBatch, KafkaPythonBatch])
def test_an_emptied_batch_is_read_by_other_clients(
    compression: Compression, foreign: Callable[[bytes], Iterable[object]]
) -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=41, compression=compression)
    put(broker, (b"a", b"2"))
    fill(broker)
    compact(broker)
    data = broker.read_all()
    header = next(header for _, header in iter_headers(data))
    assert (header.record_count, header.producer_id, header.last_offset) == (0, 7, 0)
    check_crc(data, 0, header)
    assert list(foreign(data[: header.size_bytes])) == []


def test_nothing_past_the_high_watermark_or_an_open_transaction_is_touched() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    put(broker, (b"b", b"1"))
    put(broker, (b"b", b"2"))
    fill(broker)
    assert compact(broker) is None
    mark(broker, 7, ControlType.COMMIT)
    broker.log.high_watermark = Offset(1)
    broker.sync(full=True)
    assert broker.log.begin_compaction(now_ms=DAY_MS) is None


def test_a_clean_log_is_left_alone_until_enough_is_dirty() -> None:
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"))
    fill(broker)
    compact(broker)
    broker.log.config = LogConfig(
        segment_bytes=600, cleanup_compact=True, min_cleanable_dirty_ratio=0.99
    )
    put(broker, (b"a", b"2"))
    fill(broker)
    assert compact(broker) is None
    broker.log.config = LogConfig(
        segment_bytes=600,
        cleanup_compact=True,
        min_cleanable_dirty_ratio=0.99,
        max_compaction_lag_ms=DAY_MS // 2,
    )
    assert compact(broker) is not None


@settings(max_examples=60, deadline=None)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 6), st.booleans(), st.integers(1, 3)), min_size=1, max_size=40
    ),
    passes=st.lists(st.integers(0, 40), max_size=3),
    restart=st.sampled_from(["no", "stop", "kill", "power"]),
)
def test_any_history_keeps_the_last_value_of_each_key(
    writes: list[tuple[int, bool, int]], passes: list[int], restart: str
) -> None:
    broker = memory_broker(CONFIG)
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for number, (key_number, is_tombstone, count) in enumerate(writes):
        if number in passes:
            compact(broker, now_ms=1000)
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for index in range(count):
            key = b"key-%d" % ((key_number + index) % 7) * (1 if index else 20)
            value = None if is_tombstone else b"%d-%d" % (number, index) + b"." * 60
            pairs.append((key, value))
            last[key] = (broker.log.log_end_offset + index, value)
        put(broker, *pairs)
    fill(broker)
    end = broker.log.log_end_offset
    epoch_end = broker.log.epochs.end_of(broker.log.epochs.latest, broker.log.log_end_offset)
    compact(broker, now_ms=1000)
    if restart == "stop":
        broker.stop_and_start()
    elif restart == "kill":
        broker.kill_and_start()
    elif restart == "power":
        broker.checkpoint()
        broker.lose_power_and_start()
    assert {key: (o, value) for o, key, value in shown(broker)} == last
    assert broker.log.log_end_offset == end
    assert (
        broker.log.epochs.end_of(broker.log.epochs.latest, broker.log.log_end_offset) == epoch_end
    )
    bases = [segment.base_offset for segment in broker.log._segments.all]
    ends = [segment.end_offset for segment in broker.log._segments.all]
    assert bases[1:] == ends[:-1], "segments must touch each other"


def test_what_only_holds_numbers_of_producers_expires_as_it_would_have_before() -> None:
    """If all records of a segment are outdated, only the header of the last batch is kept, which
    has no record times.
    """
    config = replace(CONFIG, cleanup_delete=True, retention_ms=5000)
    broker = memory_broker(config)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    put(broker, (b"k", b"v" * 400), timestamp_ms=1000, producer_id=7, base_sequence=0)
    put(broker, (b"k", b"w" * 400), timestamp_ms=2000)
    put(broker, (b"j", b"x" * 400), timestamp_ms=3000)
    storage.now_ms = 4000
    job = compact(broker, now_ms=4000)
    assert job is not None
    assert list(records(broker)) == [1, 2]
    first = broker.log._segments.all[0]
    assert (first.end_offset, first.max_timestamp_ms, first.newest_ms()) == (1, -1, 1000)
    storage.now_ms = 5000
    compact(broker, now_ms=5000)
    broker.kill_and_start()
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.log.apply_retention(now_ms=6000)
    assert broker.log.log_start_offset == 0
    broker.log.apply_retention(now_ms=7001)
    assert broker.log.log_start_offset == 2, "it does not keep what follows it"


def test_a_record_is_compacted_at_its_greatest_age_however_little_is_written() -> None:
    broker = memory_broker(CONFIG)
    for number in range(8):
        put(broker, (b"%d" % number, b"v" * 400), timestamp_ms=5000)
    assert compact(broker) is not None
    late = replace(CONFIG, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=0.9)
    broker.log.config = late
    put(broker, (b"untimed", b"v" * 500), timestamp_ms=-1)
    clean = broker.log.segment_count
    old = put(broker, (b"k", b"old"), timestamp_ms=5000)
    put(broker, (b"k", b"new"), timestamp_ms=6000)
    assert broker.log.segment_count == clean + 1
    put(broker, (b"i", b"late"), timestamp_ms=6001)
    assert broker.log.segment_count == clean + 2, "the active segment is never compacted"
    assert compact(broker, now_ms=6000) is None, "not so old yet"
    assert compact(broker, now_ms=6001) is not None
    assert old not in records(broker)


def test_a_segment_without_timestamps_is_as_young_as_its_file() -> None:
    broker = memory_broker(replace(CONFIG, min_compaction_lag_ms=1000))
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    storage.now_ms = 5000
    for value in (b"old", b"new", b"newest"):
        put(broker, (b"k", value * 100), timestamp_ms=-1)
    assert compact(broker, now_ms=5999) is None
    assert compact(broker, now_ms=6000) is not None
