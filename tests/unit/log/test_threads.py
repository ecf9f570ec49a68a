"""Disk threads read, sync and compact a log while its owner appends, rolls and deletes, on a real disk."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import SyncJob
from odradek_broker.log.log_reads import ReadResult
from odradek_broker.log.storage import DiskFile, DiskStorage
from odradek_protocol.identity import Offset
from odradek_protocol.records.batch_header import check_crc, iter_headers
from tests.unit.log.material import Broker, batch

CONFIG = LogConfig(
    segment_bytes=6000,
    index_interval_bytes=300,
    retention_bytes=60_000,
    file_delete_delay_ms=5,
    cleanup_compact=True,
    cleanup_delete=True,
    min_cleanable_dirty_ratio=0.0,
)
SYNC_TURNS_MAX = 100
"""The test waits for a sync that lasts for so many turns. Retention deletes what is about 300 turns old."""


class ColdFile(DiskFile):
    """A file that is never in the page cache, so that every read goes to a disk thread."""

    __slots__ = ()

    def is_resident(self, position: int, size_bytes: int) -> bool:
        return False


class ColdStorage(DiskStorage):
    __slots__ = ()

    def open(self, path: Path, *, create: bool = False) -> ColdFile:
        file = super().open(path, create=create)
        return ColdFile(file._fd)


def test_readers_in_threads_see_only_whole_batches_in_order(tmp_path: Path) -> None:
    broker = Broker(ColdStorage(), tmp_path / "data", CONFIG)
    log, directory, random = broker.log, broker.directory, Random(5)
    reads: list[tuple[Offset, Future[ReadResult]]] = []
    syncs: list[tuple[int, SyncJob, Future[None]]] = []
    compaction: tuple[CompactJob, Future[None]] | None = None
    checked = passes = found = 0
    with ThreadPoolExecutor(3) as pool:
        for turn in range(3000):
            keys = [b"key-%d" % random.randrange(40) for _ in range(3)]
            data = batch(
                log.log_end_offset,
                count=3,
                keys=keys,
                timestamp_ms=turn,
                value_bytes=random.randrange(80),
            )
            log.append(data, now_ms=turn, retain=False)
            log.set_high_watermark(log.log_end_offset)
            start = Offset(random.randrange(log.log_start_offset, log.log_end_offset))
            plan = log.plan_read(start, bytes_max=2000, end_offset=log.log_end_offset)
            reads.append((start, pool.submit(plan.run)))
            if turn % 7 == 0:
                job = log.begin_sync(full=turn % 3 == 0)
                if job is not None:
                    syncs.append((turn, job, pool.submit(job.run)))
            # On a busy disk one sync could last for all turns, and compaction waits for the end of a full sync.
            for sync in [
                sync for sync in syncs if sync[2].done() or turn - sync[0] >= SYNC_TURNS_MAX
            ]:
                sync[2].result(timeout=30)
                log.finish(sync[1])
                syncs.remove(sync)
            if compaction is None and turn % 20 == 0:
                fresh = log.begin_compaction(now_ms=turn)
                if fresh is not None:
                    compaction = fresh, pool.submit(fresh.run_slice, 2)
            elif compaction is not None and compaction[1].done():
                current = compaction[0]
                log.install_compacted(current)
                compaction = None
                if current.is_done:
                    passes += 1
                else:
                    compaction = current, pool.submit(current.run_slice, 2)
            if turn % 50 == 0:
                log.apply_retention(now_ms=turn)
                broker.remove_files(now_ms=turn)
            while len(reads) > 20:
                start, read = reads.pop(0)
                found += _check(start, read.result(timeout=30))
                checked += 1
        for start, read in reads:
            found += _check(start, read.result(timeout=30))
        if compaction is not None:
            current, slice_done = compaction
            slice_done.result(timeout=30)
            while not current.is_done:
                log.install_compacted(current)
                pool.submit(current.run_slice, 2).result(timeout=30)
            log.install_compacted(current)
            passes += 1
        for _, job, done in syncs:
            done.result(timeout=30)
            log.finish(job)
    assert directory.failure is None
    assert passes, "compaction never ran to its end"
    assert found > checked * 3 // 4, "most reads must find something"
    end = log.log_end_offset
    broker.stop_and_start()
    assert broker.log.log_end_offset == end
    directory.close(broker_epoch=None)


def _check(start: int, result: ReadResult) -> bool:
    data = b"".join(bytes(part) for part in result.slices)
    before = -1
    for position, header in iter_headers(data):
        check_crc(data, position, header)
        assert header.base_offset > before
        before = header.last_offset
    if data:
        assert next(iter_headers(data))[1].last_offset >= start
        assert result.end_offset == before + 1
    return bool(data)
