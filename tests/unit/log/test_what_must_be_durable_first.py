"""Operations that need durable bytes first: compacting a segment, and completing a sync after a new
segment began.
"""

from __future__ import annotations

from pathlib import Path

from odradek_broker.log.log_config import LogConfig
from tests.unit.log.compacted_logs import CONFIG, put
from tests.unit.log.material import batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

NOW_MS = 10**12


def test_a_segment_is_compacted_only_below_the_recovery_point() -> None:
    """A start scans the bytes above the recovery point, and must find them as they were
    appended.
    """
    broker = memory_broker(CONFIG)
    for number in range(20):
        put(broker, (b"k%d" % (number % 2), b"v" * 100))
    log = broker.log
    log.set_high_watermark(log.log_end_offset)
    assert log.segment_count > 2
    assert log.recovery_point == 0
    assert log.begin_compaction(now_ms=NOW_MS) is None
    broker.sync(full=True)
    assert log.begin_compaction(now_ms=NOW_MS) is not None


def test_a_synced_batch_behind_a_roll_survives_the_power_cut() -> None:
    """The name of the new segment is in the directory, which must be synced as well."""
    broker = memory_broker(LogConfig(segment_bytes=1_000))
    storage = broker.storage
    assert isinstance(storage, MemoryStorage)
    _sync_directories(storage, broker.log.directory)
    while broker.log.segment_count < 3:
        broker.log.append(batch(broker.log.log_end_offset), now_ms=1)
        broker.sync()
        files = storage.durable_files(broker.log.directory)
        stored = sum(len(data) for name, data in files.items() if name.endswith(".log"))
        expected = sum(len(batch(n)) for n in range(broker.log.durable_end_offset))
        assert stored == expected, f"at {broker.log.log_end_offset} records: {sorted(files)}"
        assert broker.log.durable_end_offset == broker.log.log_end_offset


def _sync_directories(storage: MemoryStorage, directory: Path) -> None:
    for path in (directory, directory.parent):
        storage.sync_directory(path)
