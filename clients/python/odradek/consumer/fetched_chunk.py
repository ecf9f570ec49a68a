"""The batches of one partition in one fetch response, decoded on demand, and the state of a partition that is read.

Only as many records are decoded as a read requests. Control batches are skipped. With read_committed, the batches of
aborted transactions are skipped, too: the broker lists the producer ids of aborted transactions with their first
offsets, and each transaction ends at its abort marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from odradek.errors import CorruptRecords
from odradek.partitions import TopicPartition
from odradek_protocol.records.batch_header import BatchHeader, iter_headers
from odradek_protocol.records.batch_reader import open_batch
from odradek_protocol.records.errors import CorruptBatch

if TYPE_CHECKING:
    from odradek_protocol.records.codec import Record, RecordReader
    from odradek_protocol.records.columns import ColumnBuilder


BYTES_EXPANDED_MAX = 64 * 1024 * 1024


class FetchedChunk:
    """The batches of one partition in one fetch response, until they are read. The planner owns all chunks."""

    __slots__ = (
        "_aborted",
        "_batches",
        "_current",
        "_reader",
        "leader_epoch",
        "name",
        "next_offset",
        "read_offset",
        "records",
        "size_bytes",
        "source",
    )

    def __init__(
        self,
        name: TopicPartition,
        records: memoryview,
        *,
        next_offset: int,
        source: int,
        aborted: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """`aborted` has (producer id, first offset) of the aborted transactions; None: read_uncommitted."""
        self.name = name
        self.records = records
        self.size_bytes = len(records)
        self.next_offset = next_offset
        self.source = source
        self.leader_epoch = -1
        """The leader epoch of the last batch that was read or skipped; -1 before the first batch."""
        self.read_offset = -1
        """The offset after the last batch that `read_columns` added completely; -1 before the first such batch."""
        self._aborted = None if aborted is None else sorted(aborted, key=lambda pair: -pair[1])
        self._batches = self._data_batches()
        self._current: tuple[int, BatchHeader] | None = None
        self._reader: RecordReader | None = None

    def read(self, records_max: int, start_offset: int) -> list[Record]:
        """Decode and return up to `records_max` records, beginning with `start_offset`. The result is empty at the end
        of the chunk.

        Raises:
            CorruptRecords: a batch is damaged. The chunk can no longer be used.
        """
        try:
            while True:
                if self._reader is None:
                    batch = self._next_batch(start_offset)
                    if batch is None:
                        return []
                    self._reader = open_batch(
                        self.records,
                        *batch,
                        bytes_expanded_max=BYTES_EXPANDED_MAX,
                        start_offset=start_offset,
                        topic=self.name.topic,
                        partition=self.name.partition,
                    )
                records = self._reader.read(records_max)
                if not self._reader.remaining:
                    self._reader = self._current = None
                if records:
                    return records
        except CorruptBatch as error:
            raise self._corrupt(start_offset, error) from error

    def read_columns(self, builder: ColumnBuilder, start_offset: int) -> None:
        """Add all records from `start_offset` on to `builder`. Raises the errors of `read`."""
        try:
            while (batch := self._next_batch(start_offset)) is not None:
                builder.append_batch(self.records, *batch, start_offset=start_offset)
                self.read_offset = batch[1].next_offset
                self._current = None
            self._reader = None
        except CorruptBatch as error:
            raise self._corrupt(start_offset, error) from error

    def _next_batch(self, start_offset: int) -> tuple[int, BatchHeader] | None:
        """Return the current batch or, if there is no current batch, the next one; None at the end of the chunk."""
        while self._current is None:
            self._current = next(self._batches, None)
            if self._current is None:
                return None
            header = self._current[1]
            if header.next_offset <= start_offset:
                self._current = None
        return self._current

    def _data_batches(self) -> Iterator[tuple[int, BatchHeader]]:
        aborting: set[int] = set()
        for position, header in iter_headers(self.records):
            self.leader_epoch = header.partition_leader_epoch
            if self._aborted is not None and header.is_transactional:
                while self._aborted and self._aborted[-1][1] <= header.last_offset:
                    aborting.add(self._aborted.pop()[0])
                if header.is_control:
                    aborting.discard(header.producer_id)
                elif header.producer_id in aborting:
                    continue
            if not header.is_control:
                yield position, header

    def _corrupt(self, offset: int, error: CorruptBatch) -> CorruptRecords:
        return CorruptRecords(
            f"{self.name}: a batch at or after offset {offset} is damaged: {error}",
            hint="read again; if the error persists, check the broker's disk, and seek to an offset after the batch",
        )


UNKNOWN = -1


class PartitionProgress(Struct, eq=False):
    """The state of one partition that is read."""

    name: TopicPartition
    position: int = UNKNOWN
    topic_id: bytes = b""
    """The id of the topic that the position is valid for; b"" until the metadata of the topic is known."""
    is_of_group: bool = False
    """Whether a group assigned the partition, so that the group determines where to read it."""
    fetch_offset: int = UNKNOWN
    lookup_ms: int | None = None
    """The timestamp to look up while the position is unknown, or EARLIEST, or LATEST. None: no look-up is planned."""
    is_looking_up: bool = False
    last_epoch: int = -1
    """The leader epoch of the last record that was returned; -1: unknown."""
    validated_epoch: int = -1
    """The leader epoch for which the position was validated; -1: none."""
    is_validating: bool = False
    is_paused: bool = False
    """Whether the program has paused the partition."""
    is_suspended: bool = False
    """Whether the group membership suspended the partition: it is being revoked, or `on_assign` has not returned
    yet.
    """
    endpoint: str | None = None
    """The address of the broker that the partition is fetched from; None: it is not fetched."""
    fetch_epoch: int = -1
    fetch_id: int = 0
    buffered: int = 0
    """The number of chunks that are not read yet."""
    must_drain: bool = False
    """Whether the fetch offset is out of range, but earlier, valid records are still buffered."""
    not_before_ms: int = 0
    failures: int = 0
    failing_since_ms: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_replica: int = -1
    is_end_reached: bool = False

    @property
    def is_drained(self) -> bool:
        """Whether all records before an out-of-range offset were read, so that the offset can be reset now."""
        return self.must_drain and not self.buffered

    def needs_check(self, leader_epoch: int) -> bool:
        """Return whether the log may have been truncated below the position."""
        return (
            self.position != UNKNOWN
            and self.last_epoch >= 0
            and leader_epoch > max(self.last_epoch, self.validated_epoch)
        )


@dataclass(slots=True)
class FetchAdd:
    """A partition to add to a fetch stream."""

    name: TopicPartition
    offset: int
    leader_epoch: int
    fetch_id: int


@dataclass(slots=True)
class StreamChange:
    """The partitions to add to a fetch stream and to remove from it."""

    add: dict[TopicPartition, FetchAdd] = field(default_factory=dict)
    remove: set[TopicPartition] = field(default_factory=set)
