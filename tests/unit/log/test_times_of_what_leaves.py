"""Looking up a timestamp on a disk thread while the owner deletes the segments is no disk error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import StorageJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.identity import Offset
from tests.unit.log import compacted_logs
from tests.unit.log.material import PARTITION, TOPIC_ID, Broker, batch
from tests.worlds.memory_storage import MemoryFile, MemoryStorage

CONFIG = replace(compacted_logs.CONFIG, cleanup_delete=True, retention_ms=500)


class Watched(MemoryStorage):
    """A storage that calls `on_open` once before the next file is opened, to run what the owner
    does at that moment.
    """

    on_open: Callable[[], object] | None = None

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        act, self.on_open = self.on_open, None
        if act is not None:
            act()
        return super().open(path, create=create)


def filled() -> tuple[Watched, Broker]:
    """Return a log of records 10 ms apart; two of three have a key that repeats.

    No index is in memory.
    """
    storage = Watched()
    broker = Broker(storage, config=CONFIG)
    for number in range(30):
        keys = [b"again", b"again", b"once-%d" % number]
        data = batch(broker.log.log_end_offset, count=3, keys=keys, timestamp_ms=10 * number)
        broker.log.append(data, now_ms=0)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.stop_and_start()
    broker.log.set_high_watermark(broker.log.log_end_offset)
    assert broker.log.segment_count > 5
    return storage, broker


def compact_when_opened(storage: Watched, log: PartitionLog) -> None:
    job = log.begin_compaction(now_ms=300)
    assert job is not None
    while not job.ready:
        job.run_slice(0)
    storage.on_open = lambda: log.install_compacted(job)


def test_a_segment_compacted_meanwhile_is_looked_into_anew() -> None:
    storage, broker = filled()
    log = broker.log
    assert log.offset_for_timestamp(22) == (22, 8, 0)  # with the indexes of the first segment
    compact_when_opened(storage, log)
    assert log.offset_for_timestamp(22) == (22, 8, 0)
    assert broker.directory.failure is None


def test_a_segment_that_expired_meanwhile_is_passed_over() -> None:
    storage, broker = filled()
    log = broker.log
    storage.on_open = lambda: log.apply_retention(now_ms=600)
    found = log.offset_for_timestamp(0)
    assert log.log_start_offset > 0
    assert found is not None
    assert found.offset == log.log_start_offset
    assert broker.directory.failure is None


@pytest.mark.parametrize(
    "look", [lambda log: log.offset_for_timestamp(15), lambda log: log.max_timestamp_offset()]
)
def test_a_topic_deleted_meanwhile_takes_no_directory_offline(
    look: Callable[[PartitionLog], object],
) -> None:
    _, broker = filled()
    log = broker.log
    broker.directory.delete(TOPIC_ID, PARTITION)
    assert look(log) is None
    assert broker.directory.failure is None


def test_a_tail_cut_meanwhile_is_no_damage() -> None:
    storage = Watched()
    broker = Broker(storage, config=LogConfig())
    for number in range(3):
        broker.append(1, timestamp_ms=10 * number)
    log, reads, cuts = broker.log, list[Path](), list[StorageJob]()

    def cut_before_the_batch_is_read(operation: str, path: Path) -> None:
        if operation == "read":
            reads.append(path)
            if len(reads) == 3:  # those before found its header
                cuts.append(log.begin_truncate(Offset(2)))
                cuts[0].run()

    storage.fault = cut_before_the_batch_is_read
    assert log.offset_for_timestamp(20) is None
    log.finish(cuts[0])
    assert log.log_end_offset == 2
    assert broker.directory.failure is None
