"""A simulated broker's data directory: the production code's own, on a file system in memory.

When a process dies, everything that it wrote remains. When a machine loses power, the synced bytes remain, and some of
the unsynced ones. A process may die in any disk operation: a write is then cut at any byte, and a sync is not done. The
production code's recovery decides what the next start finds, and which restart class it has (clean, process or power).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch
from zlib import crc32

from odradek_broker.log import log_directory
from odradek_broker.log.directory.checkpoints import RECOVERY_POINTS, CheckpointJob, decode_offsets
from odradek_broker.log.directory.partition_files import DAMAGED
from odradek_broker.log.log_config import LogConfig
from odradek_broker.log.log_directory import LogDirectory, RestartClass
from odradek_broker.log.partition_log import PartitionLog
from odradek_broker.log.storage import LogDamaged
from odradek_protocol.identity import (
    BrokerId,
    ClusterId,
    IncarnationId,
    Offset,
    TopicIdPartition,
)
from odradek_protocol.records import BatchHeader, decode_batch, iter_headers
from odradek_protocol.records.errors import CorruptBatch
from tests.sim.disk_damage import Damage
from tests.sim.scheduler import ProcessKilled, Scheduler
from tests.worlds.memory_storage import MemoryDirectory, MemoryStorage

if TYPE_CHECKING:
    from tests.sim.cluster import BrokerNode

PATH = Path("/data")
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, file_delete_delay_ms=0)
RECENT_BYTES_MAX = 4_000  # so little that most reads are from files
WRITTEN_BYTES_MAX = 300  # maximum bytes of a write in which the process dies
HOT_CHANCE = 0.8  # the chance that the bytes of a read are in the page cache
READ_BYTES_MAX = 1 << 20
# Choices for the limit of the unsynced bytes of all logs. A process ends before the limit by age applies.
FLUSHES_BYTES_MAX = (1_000, 20_000)
CHECKPOINT_LOOK_CHANCE = 0.1  # the chance to check a new checkpoint while no log is truncated
CLUSTER_ID = ClusterId("simulated")


class SimulatedStorage(MemoryStorage):
    """A file system whose page cache contains most of the bytes that are read."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_full = False
        self.is_short_of_files = False
        self._scheduler = scheduler
        super().__init__()
        # The limit of open files is low by default. Dirty files are then synced when they are closed, and a power loss
        # loses less. So three of four seeds have a higher limit.
        if scheduler.seed % 4:
            self.log_files_max = 100

    def free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else super().free_bytes(path)

    @property
    def is_hot(self) -> bool:
        return self._scheduler.chance(HOT_CHANCE)

    @is_hot.setter
    def is_hot(self, _: bool) -> None:
        """Ignore the value that the parent class sets."""


class OracleLog:
    """The simulator's exact knowledge of one log: the value of each record, and which records are on the disk.

    Values are read back from the log after each append and each opening. They are kept after the process has ended,
    when its log object can no longer be read.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        reading: Callable[[], AbstractContextManager[None]],
        synced_before: int = 0,
    ) -> None:
        """Attach to a log. Each read of the log runs inside the context manager `reading`."""
        self.log = log
        self._reading = reading
        self.is_truncating = False
        self._synced_before = min(synced_before, log.log_end_offset)  # synced by earlier processes
        self.known: dict[int, int] = {}  # values by offset, also those below the log start
        self.read_to = log.log_start_offset
        self.catch_up()

    @property
    def log_start(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end(self) -> int:
        """The end of the appended records. A log that could not undo a failed append still counts its records."""
        end = self.log.log_end_offset
        return end if self.log.is_intact else min(end, self.read_to)

    @property
    def on_disk_end(self) -> int:
        """The end of the bytes that this process or an earlier one has synced. The log's `durable_end_offset` does not
        count all syncs of earlier processes.
        """
        return max(self.log.durable_end_offset, self._synced_before)

    def catch_up(self) -> None:
        """Read the values of newly appended records."""
        end = self.log_end
        start = max(self.read_to, self.log.log_start_offset)
        if start < end and not self.is_truncating:
            with self._reading():
                for offset, value in read_values(self.log, start, end):
                    self.known[offset] = value
            self.read_to = Offset(end)

    def cut(self, end: int) -> None:
        """Record that the log will end at `end`."""
        self._synced_before = min(self._synced_before, end)
        self.read_to = Offset(min(self.read_to, end))
        for offset in [offset for offset in self.known if offset >= end]:
            del self.known[offset]

    def value_at(self, offset: int) -> int | None:
        """Return the value of the record at this offset; None if there is no such record."""
        return self.known.get(offset) if self.log_start <= offset < self.log_end else None


class DataDirectory:
    """The disk of one broker, which outlives its processes."""

    def __init__(self, node: BrokerNode) -> None:
        self.logs: dict[TopicIdPartition, OracleLog] = {}
        self.lost_power = False  # a power loss was not reported by a registration yet
        self.losses = 0  # number of times that written bytes may have been lost
        self.damage: dict[TopicIdPartition, Damage] = {}
        self.directory: LogDirectory | None = None
        self._node = node
        self._scheduler = node.cluster.scheduler
        self._is_failed = False
        self._boots = 0
        self._lives = 0
        self._operations_left: int | None = None
        self._on_death: Callable[[], None] | None = None
        self._synced: dict[TopicIdPartition, int] = {}
        self._scanned: dict[tuple[Path, str], tuple[bytes, int]] = {}
        self.storage = SimulatedStorage(self._scheduler)

    @property
    def has_failed(self) -> bool:
        """Whether a write or sync failed, and no registration has reported this to the controller yet."""
        failure = self.directory.failure if self.directory is not None else None
        return self._is_failed or failure is not None

    def begin_life(self, incarnation: IncarnationId) -> LogDirectory:
        """Open the directory, and determine how the last process ended. Raises ProcessKilled."""
        if self._lives == 0:
            LogDirectory.format(
                PATH,
                cluster_id=CLUSTER_ID,
                node_id=BrokerId(self._node.broker_id),
                storage=self.storage,
            )
            self.storage.sync_directory(Path("/"))
        self._is_failed = self.has_failed
        self._synced = {partition: log.on_disk_end for partition, log in self.logs.items()}
        self.storage.fault = self._fault
        self._lives += 1
        for damage in self.damage.values():
            damage.is_marked = self.storage.exists(damage.directory / DAMAGED)
        self.directory = WatchedDirectory.open(
            PATH,
            cluster_id=CLUSTER_ID,
            node_id=BrokerId(self._node.broker_id),
            incarnation=incarnation,
            storage=self.storage,
            boot_id=f"boot-{self._boots}",
            recent_bytes_max=RECENT_BYTES_MAX,
        )
        assert isinstance(self.directory, WatchedDirectory)
        if self.directory.restart_class is RestartClass.CLEAN:
            # Everything was synced before. If this process dies while it loads, the next start is of class PROCESS.
            self.lost_power = False
        self.directory.on_loaded = self._loaded
        self.directory.on_told = self._told
        self.directory.on_checkpoint = self._checkpoint_written
        self.directory.flush_total_bytes_max = self._scheduler.random.choice(FLUSHES_BYTES_MAX)
        return self.directory

    def _loaded(self, cut_bytes: int) -> None:
        """Check that the recovered logs have all records that had to survive the end of the last process."""
        directory, before = self.directory, self.logs
        assert directory is not None
        self.logs = {log.id: self._oracle_of(log) for log in directory.logs()}
        restart_class = directory.restart_class
        is_power = restart_class is RestartClass.POWER
        assert is_power or not (self.lost_power or self.has_failed), "the directory hides a loss"
        counters = self._scheduler.counters
        counters["production recoveries"] += 1
        counters["incomplete last batches"] += cut_bytes > 0
        for partition, log in before.items():
            now = self.logs[partition].log_end if partition in self.logs else 0
            counters["records lost in power losses"] += max(0, log.log_end - now) * is_power
            kept = log.on_disk_end if is_power else log.log_end
            if partition in self.damage:
                self._damage_recovered(partition, now)
            elif now < kept and kept > log.log_start and not log.is_truncating:
                self._node.cluster.invariants.fail(
                    "P13",
                    f"broker {self._node.broker_id} recovered {partition} up to offset {now} after a"
                    f" {restart_class.value} restart; records below {kept} had to survive",
                )
        for log in self.logs.values():
            self.check_vouched(log)

    def _checkpoint_written(self) -> None:
        """Check a new checkpoint at once during a truncation, because the next one may replace it soon."""
        is_truncating = any(log.is_truncating for log in self.logs.values())
        self._scheduler.counters["checkpoints during a truncation"] += is_truncating
        if is_truncating or self._scheduler.chance(CHECKPOINT_LOOK_CHANCE):
            self.check_checkpoint()

    def _told(self) -> None:
        self.lost_power = self._is_failed = False
        self.damage = {
            partition: damage for partition, damage in self.damage.items() if not damage.is_cut
        }

    def _damage_recovered(self, partition: TopicIdPartition, end: int) -> None:
        """Check P20: a log that was marked as damaged is truncated before the damage at the next start."""
        damage = self.damage[partition]
        damage.is_cut = end <= damage.base_offset
        self._scheduler.counters["damaged logs truncated"] += damage.is_cut
        if damage.is_marked and not damage.is_cut:
            self._node.cluster.invariants.fail(
                "P20",
                f"broker {self._node.broker_id} marked {partition} as damaged at"
                f" {damage.base_offset}, and opens it up to {end}",
            )

    def oracle(self, log: PartitionLog) -> OracleLog:
        """Return the OracleLog of a log that got a replica."""
        known = self.logs.get(log.id)
        if known is None or known.log is not log:
            known = self.logs[log.id] = self._oracle_of(log)
        return known

    def _oracle_of(self, log: PartitionLog) -> OracleLog:
        return OracleLog(log, reading=self.undamaged, synced_before=self._synced.get(log.id, 0))

    def forget_departed(self) -> None:
        """Remove the logs that the directory has deleted or put aside."""
        directory = self.directory
        assert directory is not None
        for partition, log in list(self.logs.items()):
            if directory.get(partition.topic_id, partition.partition) is not log.log:
                del self.logs[partition]
                self._synced.pop(partition, None)
                self.damage.pop(partition, None)

    # --- faults -----------------------------------------------------------------------------------

    def killed(self) -> None:
        """Record that the process that wrote to this disk is dead."""
        for log in self.logs.values():
            try:
                log.catch_up()
            except ProcessKilled:
                pass
            except LogDamaged:
                # The disk failed in a truncation that had already cut the file. The log is offline until it is
                # recovered.
                if not self.has_failed:
                    raise
        self.storage.kill_process()
        self.storage.fault = _of_a_dead_process

    def lose_power(self) -> None:
        """Switch the machine off. Bytes that were not synced are lost."""
        self._boots += 1
        self.lost_power = True
        self.losses += 1
        self.storage.lose_power(self._scheduler.random)

    def keep_only(self, partition: TopicIdPartition, end: int) -> None:
        """Let the machine lose power, and lose all records of this log from `end` on, but nothing of other logs."""
        self._boots += 1
        self.lost_power = True
        self.losses += 1
        log = self.logs[partition]
        log.cut(end)
        for name in self.storage.names(log.log.directory):
            if name.endswith(".log"):
                inode = self.storage.inode(log.log.directory / name)
                base = int(name.removesuffix(".log"))
                size = 0
                with suppress(CorruptBatch):
                    for position, header in iter_headers(bytes(inode.data)):
                        if header.next_offset <= end:
                            size = position + header.size_bytes
                del inode.data[0 if base >= end else size :]
        _sync_all(self.storage.root)

    @contextmanager
    def undamaged(self) -> Iterator[None]:
        """Undo the damage inside of the `with` block, so that the simulator reads the bytes that were written."""
        for damage in self.damage.values():
            damage.flip()
        try:
            yield
        finally:
            for damage in self.damage.values():
                damage.flip()

    def mend(self) -> None:
        """Undo all remaining damage for good."""
        for damage in self.damage.values():
            damage.flip()
        self.damage = {}

    def doom(self, operations: int, on_death: Callable[[], None]) -> None:
        """Let the process die in one of its next `operations` disk operations. A write is then cut at any byte; any
        other operation is not done at all.
        """
        self._operations_left = operations
        self._on_death = on_death

    def spare(self) -> None:
        """Cancel `doom`."""
        self._operations_left = self._on_death = None

    def _fault(self, operation: str, path: Path) -> int | None:
        """Kill the process in this operation if `doom` requires it, or fail the operation. Operations on log files fail
        on bad blocks, while marker files can still be renamed.
        """
        if self._operations_left is not None and operation != "read":
            self._operations_left -= 1
            if self._operations_left == 0 and operation == "write":
                return self._scheduler.between(0, WRITTEN_BYTES_MAX)
            if self._operations_left <= 0:
                self._die()
        if self.storage.is_full and operation in ("write", "create"):
            raise OSError(errno.ENOSPC, "simulated")
        if self.storage.is_short_of_files and operation == "create":
            raise OSError(errno.EMFILE, "simulated")
        if self._node.is_disk_broken and operation in ("write", "sync"):
            is_of_a_log = path.parent not in (PATH, PATH.parent)
            if is_of_a_log:
                raise OSError(errno.EIO, "simulated")
        return None

    def _die(self) -> NoReturn:
        on_death, life = self._on_death, self._node.life
        assert on_death is not None
        self.spare()
        if life is not None and life.process.is_alive:
            life.die_within()
        else:
            self.killed()
        self._scheduler.counters["deaths in disk operations"] += 1
        self._scheduler.note(f"broker {self._node.broker_id} dies within its disk work")
        self._scheduler.after(0, on_death)
        raise ProcessKilled

    # --- checks -----------------------------------------------------------------------------------

    def check_vouched(self, log: OracleLog) -> None:
        """Check that all bytes that a log treats as durable would survive a loss of power at this moment."""
        if not log.is_truncating:
            self._require_durable(log, log.log.durable_end_offset)

    def check_checkpoint(self) -> None:
        """Check that all bytes below the checkpointed recovery points are durable, because the next process does not
        verify them.
        """
        self.forget_departed()
        if not self.storage.exists(PATH / RECOVERY_POINTS):
            return
        points = decode_offsets(self.storage.read(PATH / RECOVERY_POINTS))
        for partition, point in points.items():
            log = self.logs.get(partition)
            if log is not None:
                self._require_durable(log, point)

    def _reached(self, log: OracleLog, name: str, data: bytes, base: int) -> int:
        """Return the end offset of the last whole batch in a file. The result for an unchanged file is cached."""
        before = self._scanned.get((log.log.directory, name))
        if before is None or before[0] is not data:
            end = max((header.next_offset for header in _headers(data)), default=base)
            before = self._scanned[log.log.directory, name] = (data, end)
        return before[1]

    def _require_durable(self, log: OracleLog, end: int) -> None:
        if log.log_start >= end:
            return
        files = self.storage.durable_files(log.log.directory)
        reached: int | None = None
        for name in sorted(name for name in files if name.endswith(".log")):
            base = int(name.removesuffix(".log"))
            if reached is not None and base != reached:
                break  # everything behind a hole is lost
            reached = self._reached(log, name, files[name], base)
        if reached is None or reached < end:
            self._node.cluster.invariants.fail(
                "P13",
                f"broker {self._node.broker_id} treats {log.log.id} as durable up to {end}, but a power"
                f" loss would keep only offsets below {reached}",
            )


class WatchedDirectory(LogDirectory):
    """The production code's directory, which reports its events to the simulator."""

    on_loaded: Callable[[int], None]
    on_told: Callable[[], None]
    on_checkpoint: Callable[[], None]

    def load(self, *args: Any, **named: Any) -> Any:
        report = super().load(*args, **named)
        self.on_loaded(report.cut_bytes)
        return report

    def loss_reported(self) -> OSError | None:
        self.on_told()  # the controller knows of the loss; the process may die at any point below
        return super().loss_reported()

    def finish_checkpoint(self, job: CheckpointJob) -> None:
        super().finish_checkpoint(job)
        self.on_checkpoint()

    def close(self, **named: Any) -> bool:
        # Concurrent syncs would end in a random order.
        with patch.object(log_directory, "SYNCS_AT_CLOSE_MAX", 1):
            return super().close(**named)


def _of_a_dead_process(operation: str, path: Path) -> int | None:
    raise ProcessKilled


def _sync_all(directory: MemoryDirectory) -> None:
    directory.sync()
    for entry in directory.entries.values():
        if isinstance(entry, MemoryDirectory):
            _sync_all(entry)
        else:
            entry.sync()


def _headers(data: bytes) -> Iterator[BatchHeader]:
    """Yield the headers of the whole batches."""
    with suppress(CorruptBatch):
        for _, header in iter_headers(data):
            yield header


def read_values(log: PartitionLog, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, value) of all records in this range of the log."""
    while start < end:
        result = log.read(Offset(start), bytes_max=READ_BYTES_MAX, end_offset=Offset(end))
        if not result.size_bytes:
            return
        for part in result.slices:
            yield from values_in(bytes(part))
        start = result.end_offset


@lru_cache(maxsize=4_096)
def values_in(data: bytes) -> tuple[tuple[int, int], ...]:
    """Return (offset, value) of each record of some batches.

    The value is the number that the client wrote; for a record or a marker that a coordinator wrote, it is a checksum.
    Results are cached, because each replica has the same batches.
    """
    return tuple(_values_in(data))


def _values_in(data: bytes) -> Iterator[tuple[int, int]]:
    for position, _ in iter_headers(data):
        for record in decode_batch(data, position):
            written = bytes(record.value or b"")
            if written.isdigit():
                yield record.offset, int(written)
            else:
                yield (
                    record.offset,
                    crc32(b"%d %b %b" % (record.offset, record.key or b"", written)),
                )
