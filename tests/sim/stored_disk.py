"""The production's log on a simulated file system: segments, checkpoints, markers and recovery.

A seed in nine keeps its records this way. Every batch is encoded, written and read back through
LogDirectory and PartitionLog over a MemoryStorage, which tears and drops what was not synced when
the power goes; what a broker finds when it starts again, and of which restart class it is, the
production's recovery says.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

from odradek_broker.log import log_directory
from odradek_broker.log.directory.checkpoints import RECOVERY_POINTS, decode_offsets
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LoadReport, LogDirectory
from odradek_broker.log.log_jobs import StorageJob
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    IncarnationId,
    Offset,
    TopicIdPartition,
    TopicName,
)
from odradek_protocol.metadata.records import RestartClass
from odradek_protocol.records import BatchHeader, decode_batch, encode_batch, iter_headers
from odradek_protocol.records.codec import Record
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.disk import Batch, Disk, Work
from tests.sim.invariants import InvariantBroken
from tests.sim.scheduler import ProcessKilled, Scheduler
from tests.worlds.memory_storage import MemoryStorage

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode

PATH = Path("/data")
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, file_delete_delay_ms=0)
RECENT_BYTES_MAX = 4_000  # most reads are of files
WRITTEN_BYTES_MAX = 300  # of a write that a death cuts short
CHECKPOINT_AT_CUT_CHANCE = 0.3
READ_BYTES_MAX = 1 << 20
_CLUSTER = ClusterId("simulated")
_CLASSES = {
    log_directory.RestartClass.CLEAN: RestartClass.CLEAN,
    log_directory.RestartClass.PROCESS: RestartClass.PROCESS,
    log_directory.RestartClass.POWER: RestartClass.POWER,
}


class StoredLog:
    """What SimLog is to the simulator, over a PartitionLog.

    `value_at` tells what was read back, at opening or after an append: the oracle's view.
    """

    def __init__(
        self, log: PartitionLog, *, on_cut: Callable[[], None], synced_before: int = 0
    ) -> None:
        self.log = log
        self.on_cut = on_cut  # called while a cut is done, and the log does not know it yet
        self._synced_before = min(synced_before, log.log_end_offset)  # in earlier lives, for ever
        self.is_cutting = False
        self._values: dict[int, int] = {}
        self._note(self._read(log.log_start_offset, log.log_end_offset))

    @property
    def log_start(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end(self) -> int:
        return self.log.log_end_offset

    @property
    def durable_end(self) -> int:
        return self.log.durable_end_offset

    @property
    def on_disk_end(self) -> int:
        """As `durable_end`, with what only the oracle remembers: a new life syncs it all again."""
        return max(self.durable_end, self._synced_before)

    @property
    def producers(self) -> Any:
        return self.log.producers

    @producers.setter
    def producers(self, states: Any) -> None:
        self.log.producers = states  # only a planted bug does that

    def check(self, *args: Any) -> Any:
        return self.log.producers.check(*args)

    # --- writing ---------------------------------------------------------------------------------

    def append(self, batch: Batch) -> None:
        assert batch.base == self.log_end, f"{batch} at {self.log_end}"
        records = [Record(b"", b"%d" % value, timestamp_ms=0) for value in batch.values]
        data = encode_batch(
            records,
            base_offset=batch.base,
            leader_epoch=batch.epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
        self.log.append(data, now_ms=0)
        self._note(self._read(batch.base, batch.end))

    def begin_sync(self, *, full: bool = False) -> Work | None:
        job = self.log.begin_sync(full=full)
        return None if job is None else Work(job.run, lambda: self.log.finish(job))

    def begin_truncate(self, end: int) -> Work:
        return self._cut(self.log.begin_truncate(Offset(end)))

    def begin_reset(self, start: int) -> Work:
        return self._cut(self.log.begin_reset(Offset(start)))

    def _cut(self, job: StorageJob) -> Work:
        self.is_cutting = True

        def run() -> None:
            job.run()
            if job.error is None:
                self.on_cut()

        def finish() -> None:
            self.log.finish(job)
            self.is_cutting = False
            self._forget()

        return Work(run, finish)

    def reset(self, start: int) -> None:
        self.log.reset_to(Offset(start))
        self._forget()

    def advance_start(self, start: int) -> None:
        self.log.advance_log_start(Offset(start))

    def assign_epoch(self, epoch: Any) -> None:
        self.log.assign_epoch(epoch)

    def set_high_watermark(self, offset: Any) -> None:
        self.log.set_high_watermark(offset)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, start: int, end: int, batches_max: int) -> list[Batch]:
        """Whole batches from the one that holds `start`, none that reaches past `end`."""
        found: list[Batch] = []
        for batch in self._read(max(start, self.log_start), min(end, self.log_end)):
            if len(found) == batches_max:
                break
            found.append(batch)
        return found

    def _read(self, start: int, end: int) -> Iterator[Batch]:
        while start < end:
            result = self.log.read(Offset(start), bytes_max=READ_BYTES_MAX, end_offset=Offset(end))
            if not result.size_bytes:
                return
            for part in result.slices:
                yield from _batches(part)
            start = result.end_offset

    def value_at(self, offset: int) -> int | None:
        is_here = self.log_start <= offset < self.log_end
        return self._values.get(offset) if is_here else None

    def _note(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            self._values.update(zip(range(batch.base, batch.end), batch.values, strict=True))

    def _forget(self) -> None:
        start, end = self.log_start, self.log_end
        self._synced_before = min(self._synced_before, end)
        self._values = {o: v for o, v in self._values.items() if start <= o < end}

    def opened(self) -> LogAtOpen:
        log = self.log
        return LogAtOpen(
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            epochs=tuple(log.epochs.entries()),
        )


class StoredDisk(Disk):
    """One broker's data directory, through its lives."""

    def __init__(self, node: BrokerNode, directory_id: bytes) -> None:
        super().__init__(directory_id=directory_id)
        self._node = node
        self._boots = 0
        self._lives = 0
        self._operations_left: int | None = None
        self._on_death: Callable[[], None] | None = None
        self._storage = MemoryStorage()
        self._directory: LogDirectory | None = None
        self._report: LoadReport | None = None
        LogDirectory.format(
            PATH, cluster_id=_CLUSTER, node_id=BrokerId(node.broker_id), storage=self._storage
        )
        self._storage.sync_directory(Path("/"))

    def begin_life(self, scheduler: Scheduler) -> None:
        """Open, judge the last life, recover."""
        before: dict[TopicIdPartition, Any] = self.logs
        synced = {partition: log.on_disk_end for partition, log in before.items()}
        self._storage.fault = self._fault
        self._lives += 1
        self._directory = LogDirectory.open(
            PATH,
            cluster_id=_CLUSTER,
            node_id=BrokerId(self._node.broker_id),
            incarnation=IncarnationId(self._lives.to_bytes(16)),
            storage=self._storage,
            boot_id=f"boot-{self._boots}",
            recent_bytes_max=RECENT_BYTES_MAX,
        )
        self._report = self._directory.load(lambda *_: CONFIG, threads_max=1)
        self.logs = {
            log.id: StoredLog(  # type: ignore[misc]
                log, on_cut=self._after_a_cut, synced_before=synced.get(log.id, 0)
            )
            for log in self._directory.logs()
        }
        found = self._directory.restart_class
        is_power = found is log_directory.RestartClass.POWER
        if self.lost_power and found is log_directory.RestartClass.CLEAN:
            self.lost_power = False  # all was synced before
        assert is_power or not (self.lost_power or self.has_failed), "a loss that goes untold"
        counters = scheduler.counters
        counters["production recoveries"] += 1
        counters["torn tails"] += self._report.cut_bytes > 0
        for partition, log in before.items():
            now = self.logs[partition].log_end if partition in self.logs else 0
            counters["records lost with the power"] += max(0, log.log_end - now) * is_power
            kept = log.on_disk_end if is_power else log.log_end
            if now < kept and kept > log.log_start and not log.is_cutting:
                broker_id = self._node.broker_id
                raise InvariantBroken(
                    "P13",
                    f"broker {broker_id} finds {now} of {partition} after a {found.value} restart,"
                    f" {kept} were to outlive it",
                )
        for log in self.logs.values():
            self.check_vouched(log)

    def last_life(self) -> tuple[RestartClass, int]:
        assert self._directory is not None
        found = _CLASSES[self._directory.restart_class]
        return found, self._directory.previous_broker_epoch

    def lost_partitions(self) -> frozenset[TopicIdPartition]:
        return frozenset(self._report.power_loss) if self._report is not None else frozenset()

    def told(self) -> None:
        super().told()
        if self._directory is not None and self._directory.failure is None:
            self._directory.told()

    def open_log(self, partition: TopicIdPartition, topic: str) -> Any:
        assert self._directory is not None
        if partition not in self.logs:
            log = self._directory.create(
                TopicName(topic), partition.topic_id, partition.partition, CONFIG
            )
            stored = StoredLog(log, on_cut=self._after_a_cut)
            self.logs[partition] = stored  # type: ignore[assignment]
        return self.logs[partition]

    def remove_log(self, partition: TopicIdPartition) -> None:
        assert self._directory is not None
        if self.logs.pop(partition, None) is not None and self._directory.failure is None:
            self._directory.delete(partition.topic_id, partition.partition)

    def checkpoint(self, scheduler: Scheduler) -> None:
        """The upkeep of a broker: flushes, checkpoints, retention, removal."""
        directory = self._directory
        assert directory is not None
        if directory.failure is not None:
            return
        for log in directory.logs():
            if scheduler.chance(0.3):
                job = log.begin_sync(full=True)
                if job is not None:
                    job.run()
                    log.finish(job)
            log.apply_retention(now_ms=0)
            for segment in log.take_retired(now_ms=1):
                segment.remove_files()
        self._write_checkpoints()
        for path in directory.take_removals():
            directory.remove_tree(path)

    def _write_checkpoints(self) -> None:
        directory = self._directory
        assert directory is not None
        job = directory.begin_checkpoint()
        job.run()
        directory.finish_checkpoint(job)
        self._check_checkpoint()

    def _after_a_cut(self) -> None:
        """The timer may be due between a cut and the moment when its log hears of it."""
        life = self._node.life
        is_timer_on = life is not None and life.broker_epoch >= 0
        if is_timer_on and self._node.cluster.scheduler.chance(CHECKPOINT_AT_CUT_CHANCE):
            self._write_checkpoints()

    def close_cleanly(self, broker_epoch: int) -> None:
        assert self._directory is not None
        if self._directory.failure is None:
            with patch.object(log_directory, "SYNCS_AT_CLOSE_MAX", 1):  # or the order is chance
                self._directory.close(broker_epoch=BrokerEpoch(broker_epoch))

    def refuses(self, is_broken: bool) -> bool:
        return False

    def mark_failed(self) -> None:
        """Whether it failed, the markers say."""

    def killed(self) -> None:
        self._storage.kill_process()
        self._storage.fault = _of_a_dead_process

    def doom(self, operations: int, on_death: Callable[[], None]) -> None:
        """Let the process die within one of its next disk operations, whatever it is part of: a
        write is cut at any byte, of anything else nothing is done."""
        self._operations_left = operations
        self._on_death = on_death

    def spare(self) -> None:
        self._operations_left = self._on_death = None

    def check_vouched(self, log: Any) -> None:
        """What a log takes for durable outlives a power cut at this moment."""
        if log.is_cutting:
            return  # its files are cut before it knows
        self._require_durable(log, log.durable_end)

    def _check_checkpoint(self) -> None:
        """The next life vouches for all below the recovery points without looking."""
        points = decode_offsets(self._storage.read(PATH / RECOVERY_POINTS))
        for partition, point in points.items():
            log: Any = self.logs.get(partition)
            if log is not None:
                self._require_durable(log, point)

    def _require_durable(self, log: Any, end: int) -> None:
        files = self._storage.durable_files(log.log.directory)
        reached: int | None = None
        for name in sorted(name for name in files if name.endswith(".log")):
            base = int(name.removesuffix(".log"))
            if reached is not None and base != reached:
                break  # a hole: what lies behind it is lost
            reached = max((header.next_offset for header in _headers(files[name])), default=base)
        if log.log_start < end and (reached is None or reached < end):
            raise InvariantBroken(
                "P13",
                f"broker {self._node.broker_id} takes {log.log.id} for durable up to {end}: a power"
                f" cut leaves {reached}",
            )

    def lose_power(self, scheduler: Scheduler) -> int:
        self._boots += 1
        self._storage.lose_power(scheduler.random)
        return 0  # told at the next start

    def _fault(self, operation: str, path: Path) -> int | None:
        """The process dies here; or the logs' blocks are bad, while the markers can be renamed."""
        if self._operations_left is not None and operation != "read":
            self._operations_left -= 1
            if self._operations_left == 0 and operation == "write":
                return self._node.cluster.scheduler.between(0, WRITTEN_BYTES_MAX)
            if self._operations_left <= 0:
                self._die()
        is_of_a_log = path.parent not in (PATH, PATH.parent)
        if self._node.is_disk_broken and is_of_a_log and operation in ("write", "sync"):
            raise OSError(errno.EIO, "simulated")
        return None

    def _die(self) -> NoReturn:
        on_death, life = self._on_death, self._node.life
        assert on_death is not None
        self.spare()
        if life is not None and life.process.is_alive:
            life.die_within()
        else:  # while it opened its logs
            self.killed()
        scheduler = self._node.cluster.scheduler
        scheduler.counters["deaths within disk work"] += 1
        scheduler.note(f"broker {self._node.broker_id} dies within its disk work")
        scheduler.after(0, on_death)
        raise ProcessKilled


def _of_a_dead_process(operation: str, path: Path) -> int | None:
    raise ProcessKilled


def _headers(data: bytes) -> Iterator[BatchHeader]:
    """As far as there are whole ones."""
    with suppress(CorruptBatch):
        for _, header in iter_headers(data):
            yield header


def _batches(data: Any) -> Iterator[Batch]:
    try:
        for position, header in iter_headers(data):
            yield Batch(
                header.base_offset,
                header.next_offset,
                header.partition_leader_epoch,
                tuple(int(bytes(r.value or b"")) for r in decode_batch(data, position)),
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
            )
    except CorruptBatch as error:
        raise InvariantBroken("P13", f"a log serves a damaged batch: {error}") from error
