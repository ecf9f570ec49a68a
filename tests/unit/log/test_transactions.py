"""Transactions in the log after compaction, recovery, a truncation and retention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_protocol.identity import Offset
from odradek_protocol.records.control import ControlType
from tests.unit.log.compacted_logs import (
    CONFIG,
    DAY_MS,
    compact,
    fill,
    headers,
    mark,
    put,
    shown,
)
from tests.unit.log.material import Broker, memory_broker
from tests.worlds.memory_storage import MemoryStorage

LARGE = LogConfig(segment_bytes=100_000, index_interval_bytes=0)


def aborted(broker: Broker) -> list[AbortedTransaction]:
    log = broker.log
    return log.aborted_transactions(log.log_start_offset, log.log_end_offset)


def follower_of(broker: Broker) -> Broker:
    """Return a new replica with the same batches, all below the high watermark."""
    follower = memory_broker(broker.config)
    follower.log.append(broker.read_all(), now_ms=0)
    follower.log.set_high_watermark(follower.log.log_end_offset)
    return follower


# --- compaction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_transaction_whose_marker_is_not_replicated_is_not_compacted(kind: ControlType) -> None:
    """A truncation may remove the marker, and the next one may have the other outcome."""
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"committed"))
    put(broker, (b"a", b"pending"), producer_id=7, base_sequence=0, transactional=True)
    fill(broker)
    watermark = broker.log.log_end_offset
    mark(broker, 7, kind)
    fill(broker)
    broker.log.set_high_watermark(watermark)
    broker.sync(full=True)
    job = broker.log.begin_compaction(now_ms=DAY_MS)
    while job is not None and not job.is_done:
        job.run_slice()
        broker.log.install_compacted(job)
    assert shown(broker) == [(0, b"a", b"committed"), (1, b"a", b"pending")]


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_marker_stays_while_an_emptied_batch_of_its_transaction_does(kind: ControlType) -> None:
    """A replay of the batch without the marker would find a transaction that stays open for
    ever.
    """
    broker = memory_broker(CONFIG)
    data = put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    marker = mark(broker, 7, kind)
    put(broker, (b"a", b"2"))
    fill(broker)
    for day in (1, 3, 5):
        compact(broker, now_ms=day * DAY_MS)
        put(broker, (b"day-%d" % day, b""))
        fill(broker)
        counts = {base: count for base, _, count in headers(broker)}
        assert counts[data] == 0, "its producer's last batch stays as a header"
        assert counts.get(marker) == 1
        follower = follower_of(broker)
        assert follower.log.last_stable_offset == follower.log.high_watermark
        assert aborted(follower) == aborted(broker)
    put(broker, (b"b", b"3"), producer_id=7, base_sequence=1)
    fill(broker)
    for day in (7, 9):
        compact(broker, now_ms=day * DAY_MS)
        put(broker, (b"day-%d" % day, b""))
        fill(broker)
    counts = {base: count for base, _, count in headers(broker)}
    assert data not in counts
    assert marker not in counts
    assert not aborted(broker)


# --- recovery ------------------------------------------------------------------------------------


def test_an_abort_below_the_recovery_point_is_known_after_a_power_cut() -> None:
    broker = memory_broker(LARGE)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    broker.checkpoint()
    mark(broker, 7, ControlType.ABORT)
    put(broker, (b"b", b"2"))
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    expected = aborted(broker)
    assert len(expected) == 1
    broker.lose_power_and_start()
    assert broker.log.log_end_offset == 3
    assert aborted(broker) == expected


def test_an_abort_of_a_segment_that_was_closed_since_is_known_after_a_power_cut() -> None:
    """The transaction index file is created with its first entry, after the directory was synced
    for the new segment.
    """
    broker = memory_broker(CONFIG)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    broker.checkpoint()
    mark(broker, 7, ControlType.ABORT)
    fill(broker)
    broker.sync()
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    expected = aborted(broker)
    assert len(expected) == 1
    broker.lose_power_and_start()
    assert aborted(broker) == expected


def test_a_transaction_index_that_was_not_synced_is_made_again_after_a_power_cut() -> None:
    """Earlier brokers wrote the file without a sync, and then moved the recovery point past it."""
    broker = memory_broker(LARGE)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    mark(broker, 7, ControlType.ABORT)
    put(broker, (b"b", b"2"))
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    expected = aborted(broker)
    (index,) = broker.files(".txnindex")
    broker.storage.remove(index)
    broker.storage.sync_directory(index.parent)
    broker.lose_power_and_start()
    assert aborted(broker) == expected


def test_a_flush_syncs_a_transaction_index_only_when_it_grew() -> None:
    broker = memory_broker(LARGE)
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    synced: list[str] = []

    def watch(operation: str, path: object) -> None:
        if operation == "sync":
            synced.append(str(path).rpartition(".")[2])

    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    mark(broker, 7, ControlType.ABORT)
    storage.fault = watch  # type: ignore[assignment]
    broker.checkpoint()
    assert "txnindex" in synced
    synced.clear()
    put(broker, (b"b", b"2"))
    broker.checkpoint()
    assert "txnindex" not in synced


def test_a_cut_forgets_no_marker_that_is_not_replicated() -> None:
    """The newest snapshot does not say which markers are above the high watermark."""
    broker = memory_broker(LARGE)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    broker.log.set_high_watermark(Offset(1))
    marker = mark(broker, 7, ControlType.COMMIT)
    broker.sync(full=True)
    put(broker, (b"b", b"2"))
    put(broker, (b"c", b"3"))
    assert broker.log.last_stable_offset == 0
    broker.log.truncate_to(Offset(3))
    assert broker.log.last_stable_offset == 0
    broker.log.set_high_watermark(Offset(marker + 1))
    assert broker.log.last_stable_offset == marker + 1


# --- offsets and retention -----------------------------------------------------------------------


def test_the_last_stable_offset_is_never_below_the_log_start() -> None:
    broker = memory_broker(LARGE)
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    put(broker, (b"b", b"2"))
    put(broker, (b"c", b"3"))
    log = broker.log
    log.set_high_watermark(Offset(3))
    assert log.last_stable_offset == 0
    log.advance_log_start(Offset(2))
    assert log.last_stable_offset == 2


def test_retention_stops_at_the_last_stable_offset_and_delete_records_does_not() -> None:
    broker = memory_broker(
        replace(LARGE, segment_bytes=600, retention_ms=1, file_delete_delay_ms=0)
    )
    put(broker, (b"a", b"1"), producer_id=7, base_sequence=0, transactional=True)
    fill(broker)
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    assert log.apply_retention(now_ms=DAY_MS) == 0
    closed = log.segment_count - 1
    log.advance_log_start(log.high_watermark)
    assert log.apply_retention(now_ms=DAY_MS) >= closed
