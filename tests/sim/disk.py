"""What a broker has on its disk, and what of it only the page cache has.

A process that dies leaves all it wrote; a machine that loses its power keeps what was synced and
any prefix of the rest, the last batch of it perhaps torn: recovery finds its checksum wrong and
cuts it off, so a torn batch is one that is not there (`torn_tails` counts them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek_broker.log.producer_state import ProducerStates, StoredBatch
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_protocol.identity import TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import RestartClass
from tests.sim.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch: offsets [base, end), and what its records say."""

    base: int
    end: int
    epoch: int
    values: tuple[int, ...]
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    data: bytes = b""  # of coordinators: the batch as it is encoded, not stamped yet

    def moved(self, base: int, epoch: int) -> Batch:
        """Stamped by the leader."""
        return Batch(
            base,
            base + len(self.values),
            epoch,
            self.values,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.data,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What waits for the disk: `run` it in the pool, then `finish` it on the loop."""

    run: Callable[[], None]
    finish: Callable[[], None]


class SimLog:
    """One partition's log on one disk; it outlives processes."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.bases: list[int] = []
        self.log_start = 0
        self.log_end = 0
        self.durable_end = 0
        self.checkpoint = 0  # high watermark, written now and then
        self.empty_epoch: tuple[int, int] | None = None  # assigned, without records yet
        self.producers = ProducerStates()
        self.cuts = 0
        self._forgotten = ProducerStates()  # the producer snapshot at the log's start

    @property
    def on_disk_end(self) -> int:
        """What the oracle counts as synced."""
        return self.durable_end

    def append(self, batch: Batch) -> None:
        assert batch.base == self.log_end, f"{batch} at {self.log_end}"
        self.batches.append(batch)
        self.bases.append(batch.base)
        self.log_end = batch.end
        note_producer(self.producers, batch)

    def synced(self, end: int, cuts: int) -> None:
        """A sync that began when the log ended at `end` is over."""
        if cuts == self.cuts:
            self.durable_end = max(self.durable_end, end)

    def begin_sync(self, *, full: bool = False) -> Work | None:
        end, cuts = self.log_end, self.cuts
        return Work(_nothing, lambda: self.synced(end, cuts))

    def begin_truncate(self, end: int) -> Work:
        return Work(_nothing, lambda: self.truncate(end))

    def begin_reset(self, start: int) -> Work:
        return Work(_nothing, lambda: self.reset(start))

    def assign_epoch(self, epoch: int) -> None:
        """Found again in the batches."""

    def set_high_watermark(self, offset: int) -> None:
        """The checkpoint is enough."""

    def truncate(self, end: int) -> None:
        """Cut, synced; producer state rolls back with it."""
        self.cuts += 1
        keep = len(self.bases)
        while keep and self.batches[keep - 1].end > end:
            keep -= 1
        self._keep(keep, end)

    def reset(self, start: int) -> None:
        self.cuts += 1
        self.log_start = start
        self._forgotten = ProducerStates()
        self._keep(0, start)
        self.log_end = self.durable_end = start

    def advance_start(self, start: int) -> None:
        """Retention, DeleteRecords, or the leader's word; whole batches go, as segments do."""
        self.log_start = max(self.log_start, start)
        gone = 0
        while gone < len(self.batches) and self.batches[gone].end <= self.log_start:
            note_producer(self._forgotten, self.batches[gone])
            gone += 1
        del self.batches[:gone]
        del self.bases[:gone]

    def _keep(self, count: int, end: int) -> None:
        del self.batches[count:]
        del self.bases[count:]
        self.log_end = self.batches[-1].end if self.batches else max(end, self.log_start)
        self.durable_end = min(self.durable_end, self.log_end)
        self.checkpoint = min(self.checkpoint, self.log_end)
        self._rebuild()

    def _rebuild(self) -> None:
        self.producers = ProducerStates.from_entries(self._forgotten.entries())
        for batch in self.batches:
            note_producer(self.producers, batch)

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, last_sequence: int
    ) -> StoredBatch | ErrorCode:
        """Ask the producer state of now: a cut replaces it."""
        return self.producers.check(producer_id, producer_epoch, base_sequence, last_sequence)

    def read(self, start: int, end: int, batches_max: int) -> list[Batch]:
        """Whole batches from the one that holds `start`, none that reaches past `end`."""
        index = max(0, bisect_right(self.bases, start) - 1)
        found: list[Batch] = []
        while index < len(self.batches) and len(found) < batches_max:
            batch = self.batches[index]
            if batch.end > end:
                break
            if batch.end > start:
                found.append(batch)
            index += 1
        return found

    def value_at(self, offset: int) -> int | None:
        index = bisect_right(self.bases, offset) - 1
        if index < 0 or not self.log_start <= offset < self.batches[index].end:
            return None
        return self.batches[index].values[offset - self.batches[index].base]

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """As recovery finds them in the batches' headers."""
        found: list[tuple[int, int]] = []
        for batch in self.batches:
            if not found or found[-1][0] != batch.epoch:
                found.append((batch.epoch, max(batch.base, self.log_start)))
        return tuple(found)

    def opened(self) -> LogAtOpen:
        """Recovery: scan, rebuild what is derived, trust the checkpoint as far as the log goes."""
        self._rebuild()
        return LogAtOpen(
            log_start=self.log_start,
            log_end=self.log_end,
            durable_end=self.durable_end,
            high_watermark=max(self.log_start, min(self.checkpoint, self.log_end)),
            epochs=self.epochs(),
        )

    def lose_power(self, scheduler: Scheduler) -> int:
        """Keep what was synced and a random prefix of the rest; returns how many records went."""
        first = next(
            (i for i, b in enumerate(self.batches) if b.end > self.durable_end), len(self.batches)
        )
        kept = scheduler.between(first, len(self.batches))
        before = self.log_end
        if kept < len(self.batches):
            scheduler.counters["torn tails"] += scheduler.chance(0.5)
            self.cuts += 1
            self._keep(kept, self.durable_end)
        return before - self.log_end


@dataclass(slots=True)
class Disk:
    """One broker's data directory."""

    logs: dict[TopicIdPartition, SimLog] = field(default_factory=dict)
    clean_epoch: int | None = None  # the marker of a controlled shutdown
    has_failed: bool = False  # the marker of a failed write
    lost_power: bool = False  # another boot id
    directory_id: bytes = b""
    losses: int = 0  # times that it may have lost what was written: its power, its own failures
    _ended_cleanly: int | None = None  # broker epoch, as the present life found it

    def begin_life(self, scheduler: Scheduler) -> None:
        """Section 8: the clean marker is read, and gone, before anything else."""
        self._ended_cleanly, self.clean_epoch = self.clean_epoch, None

    def last_life(self) -> tuple[RestartClass, int]:
        """How it ended, and the broker epoch of the clean marker or -1."""
        if self.lost_power or self.has_failed:
            found = RestartClass.POWER
        elif self._ended_cleanly is not None:
            found = RestartClass.CLEAN
        else:
            found = RestartClass.PROCESS
        return found, -1 if self._ended_cleanly is None else self._ended_cleanly

    def lost_partitions(self) -> frozenset[TopicIdPartition]:
        """Those that are shorter than they vouched for, without a loss of power."""
        return frozenset()

    def told(self) -> None:
        """The controller has committed how the last life ended."""
        self.lost_power = self.has_failed = False

    def open_log(self, partition: TopicIdPartition, topic: str) -> SimLog:
        """The partition's log, made if need be."""
        return self.logs.setdefault(partition, SimLog())

    def remove_log(self, partition: TopicIdPartition) -> None:
        """The partition is deleted, or is elsewhere."""
        self.logs.pop(partition, None)

    def checkpoint(self, scheduler: Scheduler) -> None:
        """The broker's upkeep, now and then."""

    def close_cleanly(self, broker_epoch: int) -> None:
        """The marker is the last that a broker writes."""
        for log in self.logs.values():
            log.durable_end = log.log_end
        if not self.has_failed:
            self.clean_epoch = broker_epoch

    def refuses(self, is_broken: bool) -> bool:
        """Whether writes and syncs fail at once; files fail by themselves."""
        return is_broken

    def mark_failed(self) -> None:
        """It was broken, and is another one now."""
        self.has_failed = True

    def killed(self) -> None:
        """The process that wrote here is dead."""

    def doom(self, operations: int, on_death: Callable[[], None]) -> None:
        """Kill the process within one of its next disk operations; only files have these."""
        raise NotImplementedError

    def spare(self) -> None:
        """Take `doom` back."""

    def check_vouched(self, log: SimLog) -> None:
        """That what the log takes for durable is; a SimLog has one end for both."""

    def lose_power(self, scheduler: Scheduler) -> int:
        """Returns how many records were lost."""
        self.clean_epoch = None
        lost = 0
        for partition in sorted(self.logs, key=lambda p: (p.topic_id, p.partition)):
            lost += self.logs[partition].lose_power(scheduler)
        return lost


def _nothing() -> None:
    """A SimLog waits for nothing."""


def note_producer(producers: ProducerStates, batch: Batch) -> None:
    """What the log does for each batch that it appends."""
    if batch.producer_id < 0:
        return
    producers.note_batch(
        batch.producer_id,
        batch.producer_epoch,
        StoredBatch(
            base_sequence=batch.base_sequence,
            last_sequence=batch.base_sequence + len(batch.values) - 1,
            base_offset=batch.base,
            last_offset=batch.end - 1,
            timestamp_ms=0,
        ),
        is_transactional=False,
    )
