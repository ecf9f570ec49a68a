"""A log is truncated or deleted while a disk thread reads or compacts it: that is no disk error,
and removed records do not come back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.log.compaction import CompactJob
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_jobs import StorageJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.identity import Offset, TopicId
from tests.unit.log.compacted_logs import CONFIG as COMPACTED
from tests.unit.log.material import PARTITION, TOPIC, TOPIC_ID, Broker, batch, memory_broker
from tests.worlds.memory_storage import MemoryStorage

NAMESAKE = TopicId(b"n" * 16)


def storage_of(broker: Broker) -> MemoryStorage:
    assert isinstance(broker.storage, MemoryStorage)
    return broker.storage


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("start", [4, 6])
@pytest.mark.parametrize("moment", range(1, 4))
def test_a_tail_cut_while_it_is_read_is_no_damage(moment: int, start: int, verify: bool) -> None:
    broker = memory_broker(LogConfig(index_interval_bytes=0))
    for _ in range(4):
        broker.append(2, value_bytes=3_000)
    broker.stop_and_start()
    log, storage = broker.log, storage_of(broker)
    storage.is_hot = False
    plan = log.plan_read(Offset(start), bytes_max=1 << 20, end_offset=Offset(8), verify=verify)
    cuts: list[StorageJob] = []
    reads: list[Path] = []

    def cut_before_a_read(operation: str, path: Path) -> None:
        if operation == "read" and path.suffix == ".log" and not cuts:
            reads.append(path)
            if len(reads) == moment:
                cuts.append(log.begin_truncate(Offset(6)))
                cuts[0].run()

    storage.fault = cut_before_a_read
    result = plan.run()
    assert result.end_offset <= 6 or not cuts
    if cuts:
        log.finish(cuts[0])
    assert broker.directory.failure is None


def compacted_until_ready() -> tuple[Broker, CompactJob]:
    """Return a log with a segment that compaction has completed but not installed yet."""
    broker = dirty_broker()
    job = broker.log.begin_compaction(now_ms=5_000)
    assert job is not None
    while not job.ready:
        job.run_slice(0)
    return broker, job


def dirty_broker() -> Broker:
    broker = memory_broker(COMPACTED)
    for _ in range(20):
        keys = [b"again", b"again"]
        broker.log.append(batch(broker.log.log_end_offset, count=2, keys=keys), now_ms=0)
    broker.log.set_high_watermark(broker.log.log_end_offset)
    broker.checkpoint()
    assert broker.log.segment_count > 3
    return broker


def cut(log: PartitionLog, kind: str) -> int:
    if kind == "reset":
        log.reset_to(Offset(100))
    else:
        log.truncate_to(Offset(1))
    return log.log_end_offset


@pytest.mark.parametrize("kind", ["reset", "truncated"])
@pytest.mark.parametrize("death", ["kill", "power"])
@pytest.mark.parametrize("is_installed", [False, True])
def test_what_was_compacted_before_a_cut_does_not_come_back(
    kind: str, death: str, is_installed: bool
) -> None:
    broker, job = compacted_until_ready()
    log = broker.log
    end = cut(log, kind)
    if is_installed:
        log.install_compacted(job)
    new = broker.append(3, leader_epoch=7)
    broker.sync()
    if death == "kill":
        broker.kill_and_start()
    else:
        broker.lose_power_and_start()
    assert broker.log.log_end_offset == end + 3
    assert broker.read_all().endswith(new)
    assert broker.log.epochs.at(Offset(end)) == 7


def test_a_pass_that_ended_before_a_cut_compacted_nothing_above_it() -> None:
    """Records that are appended later at these offsets are not compacted yet."""
    broker, job = compacted_until_ready()
    log = broker.log
    while not job.is_done:
        log.install_compacted(job)
        job.run_slice(0)
    cut(log, "truncated")
    log.install_compacted(job)
    assert log.cleaned_offset <= log.log_end_offset


class CutAt:
    """Truncates a log from another thread, at a chosen moment of a compaction slice.

    The truncation waits for the log's lock until the slice has ended.
    """

    def __init__(self, log: PartitionLog, kind: str, moment: int) -> None:
        self.begun: StorageJob | None = None
        self._log = log
        self._kind = kind
        self._left = moment
        self._has_run = False

    def __call__(self, operation: str, path: Path) -> None:
        self._left -= 1
        if self._left != 0:
            return
        if self._kind == "reset":
            self.begun = self._log.begin_reset(Offset(100))
        else:
            self.begun = self._log.begin_truncate(Offset(1))
        if not self.begun.lock.locked():
            self._run(self.begun)

    def finish(self) -> None:
        assert self.begun is not None
        if not self._has_run:
            self._run(self.begun)
        self._log.finish(self.begun)

    def _run(self, job: StorageJob) -> None:
        self._has_run = True
        job.run()


@pytest.mark.parametrize("kind", ["reset", "truncated"])
def test_a_log_cut_at_any_moment_of_its_compaction_stays_cut(kind: str) -> None:
    moment = 0
    while True:
        moment += 1
        broker = dirty_broker()
        log, storage = broker.log, storage_of(broker)
        job = log.begin_compaction(now_ms=5_000)
        assert job is not None
        cut_at = CutAt(log, kind, moment)
        while not job.is_done and cut_at.begun is None:
            storage.fault = cut_at
            job.run_slice(0)
            storage.fault = None
            if cut_at.begun is None:
                log.install_compacted(job)
        if cut_at.begun is None:
            break
        cut_at.finish()
        while not job.is_done:
            log.install_compacted(job)
            job.run_slice(0)
        log.install_compacted(job)
        assert broker.directory.failure is None, moment
        assert storage.handles <= 5, moment
        assert not broker.files(".cleaned"), moment
        assert not broker.files(".swap"), moment
        end = log.log_end_offset
        new = broker.append(3, leader_epoch=7)
        broker.kill_and_start()
        assert broker.log.log_end_offset == end + 3, moment
        assert broker.read_all().endswith(new), moment
    assert moment > 20


def job_of(log: PartitionLog, kind: str) -> StorageJob:
    if kind == "sync":
        job = log.begin_sync(full=True)
        assert job is not None
        return job
    return log.begin_truncate(Offset(3)) if kind == "truncated" else log.begin_reset(Offset(100))


@pytest.mark.parametrize("kind", ["sync", "truncated", "reset"])
def test_work_for_a_deleted_topic_leaves_its_namesake_alone(kind: str) -> None:
    """The topic is deleted and created again while a disk thread waits for a sync of the old
    topic's files.
    """
    number = 0
    while True:
        number += 1
        broker = memory_broker(LogConfig())
        log, storage = broker.log, storage_of(broker)
        broker.append(3, leader_epoch=3, producer_id=4, producer_epoch=0, base_sequence=0)
        broker.sync()
        broker.append(2, leader_epoch=5, producer_id=4, producer_epoch=0, base_sequence=3)
        remade = Remade(broker, number)
        job = job_of(log, kind)
        storage.fault = remade
        job.run()
        storage.fault = None
        if not remade.is_done:
            break
        log.finish(job)
        assert broker.directory.failure is None
        assert storage.handles == 2, "the lock and the namesake's log"
        names = {name for name in storage.names(log.directory) if not name.endswith("index")}
        assert names == {"00000000000000000000.log", "partition.metadata"}, number
        broker.kill_and_start()
        assert broker.directory.failure is None
        namesake = broker.directory.get(NAMESAKE, PARTITION)
        assert namesake is not None
        assert (namesake.log_start_offset, namesake.log_end_offset) == (0, 1), number
    assert number > 2


class Remade:
    """A storage that deletes the topic and creates it again when a file is synced for the
    `number`-th time.
    """

    def __init__(self, broker: Broker, number: int) -> None:
        self.is_done = False
        self._broker = broker
        self._left = number

    def __call__(self, operation: str, path: Path) -> None:
        if operation != "sync" or self.is_done:
            return
        self._left -= 1
        if self._left == 0:
            self.is_done = True
            directory = self._broker.directory
            directory.delete(TOPIC_ID, PARTITION)
            log = directory.create(TOPIC, NAMESAKE, PARTITION, LogConfig())
            log.append(batch(0), now_ms=0)


@pytest.mark.parametrize("kind", ["truncated", "reset"])
def test_a_cut_that_ends_after_its_topic_gives_its_descriptor_back(kind: str) -> None:
    broker = memory_broker(LogConfig())
    broker.append(3)
    broker.append(2)
    log = broker.log
    job = job_of(log, kind)
    job.run()
    broker.directory.delete(TOPIC_ID, PARTITION)
    log.finish(job)
    assert storage_of(broker).handles == 1, "the directory's lock alone"
