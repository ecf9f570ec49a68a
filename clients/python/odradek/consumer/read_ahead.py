"""The records that a consumer has fetched, in the order in which they are returned to the program.

    fetcher --chunks--> planner --take, take_columns--> program
                                --decode--> decoded --next_decoded--> program

An iteration decodes many records at once and returns them one by one. With `odradek.sync`, the iteration runs in
another thread than the event loop. Meanwhile, the event loop may have to withdraw some of these records, because a
partition is revoked or paused, or `seek` is called. The event loop never removes records from `decoded`. Instead, it
adds the partition to `withdrawn`, and the iteration skips records of these partitions. When the iteration has emptied
`decoded`, the next `decode` empties `withdrawn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odradek.cluster.cluster import Cluster
from odradek.consumer.consumer_record import ConsumerRecord, DeserializedRecord
from odradek.consumer.fetch_planner import FetchPlanner
from odradek.consumer.fetcher import Fetcher
from odradek.consumer.options import ConsumerOptions
from odradek.errors import CorruptRecords, OdradekError, SerializationFailed
from odradek.partitions import TopicPartition
from odradek_protocol.records.columns import Column, ColumnBuilder, Columns


class ReadAhead:
    """The fetched records of one consumer. This object can only be used on the consumer's event loop."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self.planner = FetchPlanner(
            reset=options.auto_offset_reset,
            read_committed=options.isolation_level == "read_committed",
            topic_id_of=cluster.cache.topic_id,
        )
        self.fetcher = Fetcher(cluster, self.planner, options)
        self.decoded: deque[ConsumerRecord] = deque()
        self.withdrawn: set[TopicPartition] = set()
        self._options = options

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """Remove and return the next buffered records, deserialized. Raises CorruptRecords, SerializationFailed."""
        planner = self.planner
        records: list[Any] = []
        while len(records) < records_max and (head := planner.next_chunk()) is not None:
            chunk, progress = head
            try:
                piece = chunk.read(records_max - len(records), progress.position)
            except CorruptRecords:
                planner.reject_chunk()
                self.fetcher.kick()
                if records:
                    break
                raise
            if piece:
                progress.position = piece[-1].offset + 1
                progress.last_epoch = piece[-1].leader_epoch
                records = piece if not records else records + piece
            else:
                planner.finish_chunk()
                if progress.is_drained:
                    self.fetcher.kick()
        self._after_read()
        return self._deserialized(records)

    def take_columns(self, bytes_max: int, columns: Column) -> list[tuple[TopicPartition, Columns]]:
        """Remove and return the next buffered records as columns, by partition. Raises CorruptRecords."""
        planner = self.planner
        builders: dict[TopicPartition, ColumnBuilder] = {}
        taken_bytes = 0
        while taken_bytes < bytes_max and (head := planner.next_chunk()) is not None:
            chunk, progress = head
            builder = builders.get(chunk.name)
            if builder is None:
                builder = builders[chunk.name] = ColumnBuilder(columns)
            try:
                chunk.read_columns(builder, progress.position)
            except CorruptRecords:
                progress.position = max(progress.position, chunk.read_offset)
                planner.reject_chunk()
                self.fetcher.kick()
                if any(b.row_count for b in builders.values()):
                    break
                raise
            except OverflowError:
                # A column has at most 2 GiB. The next call returns the remaining records.
                progress.position = max(progress.position, chunk.read_offset)
                break
            taken_bytes += chunk.size_bytes
            planner.finish_chunk()
            if progress.is_drained:
                self.fetcher.kick()
        self._after_read()
        return [(name, builder.finish()) for name, builder in builders.items() if builder.row_count]

    def decode(self, records: Sequence[ConsumerRecord]) -> None:
        """Store decoded records for `next_decoded`, which must have returned all earlier ones."""
        assert not self.decoded, f"{len(self.decoded)} records are not returned yet"
        self.withdrawn.clear()
        self.decoded.extend(records)

    def next_decoded(self) -> ConsumerRecord | None:
        """Return the next decoded record of an iteration; None if there is none. Only one thread at a time may call
        this method.
        """
        decoded, withdrawn = self.decoded, self.withdrawn
        while decoded:
            record = decoded.popleft()
            if not withdrawn or (record.topic, record.partition) not in withdrawn:
                return record
        return None

    def put_back_decoded(self) -> None:
        """Put back the records that an iteration has decoded but not returned, so that they are read again."""
        self.withdraw(list(self._first_decoded()))

    def assign(
        self,
        names: Sequence[TopicPartition],
        *,
        suspended_from: Mapping[TopicPartition, int] | None = None,
    ) -> set[TopicPartition]:
        """Read exactly these partitions from now on, as `FetchPlanner.assign` does. Return the partitions that are
        new.
        """
        before = set(self.planner.partitions)
        self.planner.assign(names, suspended_from=suspended_from)
        now = set(self.planner.partitions)
        for name in before - now:
            self.forget_decoded(name)
        self.fetcher.kick()
        return now - before

    def position(self, name: TopicPartition) -> int:
        """Return the offset of the next record that the program gets; a negative number while it is unknown."""
        first = self._first_decoded().get(name)
        return self.planner.partitions[name].position if first is None else first

    def withdraw(self, names: Iterable[TopicPartition]) -> None:
        """Skip the decoded records of these partitions, and read them again later."""
        firsts = self._first_decoded()
        if not firsts:
            return
        for name in names:
            if name in firsts:
                self.planner.seek(name, firsts[name])
                self.forget_decoded(name)

    def forget_decoded(self, name: TopicPartition) -> None:
        """Skip the decoded records of a partition, because the program called `seek` or no longer owns the
        partition.
        """
        if self.decoded:
            self.withdrawn.add(name)
        self.fetcher.kick()

    def take_over(
        self, owned: Sequence[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Read exactly these partitions. New partitions start at their offsets in `starts`, and none of their records
        is returned before `release`.
        """
        offsets = {name: offset for name, offset in starts.items() if offset >= 0}
        for name in self.assign(owned, suspended_from=offsets) & starts.keys() - offsets.keys():
            self.planner.seek_to_timestamp(name, starts[name])

    def suspend(self, names: Sequence[TopicPartition]) -> None:
        """Return no more records of these partitions, because they are being revoked."""
        assigned = [name for name in names if name in self.planner.partitions]
        self.withdraw(assigned)
        for name in assigned:
            self.planner.suspend(name)

    def release(self, names: Sequence[TopicPartition]) -> None:
        """Begin to return records of these partitions, because `on_assign` has returned."""
        for name in names:
            if name in self.planner.partitions:
                self.planner.release(name)
        self.fetcher.kick()

    def returned_offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return, for each partition with a position, the offset after the last returned record, and the leader epoch
        of that record (-1: unknown).
        """
        offsets = {
            name: (progress.position, progress.last_epoch)
            for name, progress in self.planner.partitions.items()
            if progress.position >= 0
        }
        for name, offset in self._first_decoded().items():
            offsets[name] = (offset, -1)
        return offsets

    def fail(self, error: OdradekError) -> None:
        """Make the next read raise this error."""
        self.planner.raise_soon(error)
        self.fetcher.kick()

    def _first_decoded(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset of the first decoded record that the iteration has not returned yet."""
        firsts: dict[TopicPartition, int] = {}
        for record in list(self.decoded):  # A copy, because another thread may remove records.
            name = TopicPartition(str(record.topic), record.partition)
            if name not in self.withdrawn:
                firsts.setdefault(name, record.offset)
        return firsts

    def _after_read(self) -> None:
        self.fetcher.return_credit()
        if not self.planner.chunks:
            self.fetcher.kick()

    def _deserialized(self, records: list[Any]) -> list[ConsumerRecord]:
        key_deserializer, value_deserializer = (
            self._options.key_deserializer,
            self._options.value_deserializer,
        )
        if key_deserializer is None and value_deserializer is None:
            return records
        deserialized: list[ConsumerRecord] = []
        for index, r in enumerate(records):
            try:
                key = r.key if key_deserializer is None else key_deserializer(r.key)
                value = r.value if value_deserializer is None else value_deserializer(r.value)
            except Exception as error:
                if deserialized:
                    self._put_back(records[index:])
                    return deserialized
                self._put_back(records[index + 1 :])
                raise SerializationFailed(
                    f"the record at offset {r.offset} of {r.topic}-{r.partition} cannot be"
                    f" deserialized: {error!r}",
                    hint="read again to continue with the next record",
                ) from error
            deserialized.append(
                DeserializedRecord(
                    key,
                    value,
                    r.headers,
                    r.timestamp_ms,
                    r.offset,
                    r.topic,
                    r.partition,
                    r.leader_epoch,
                    r.timestamp_type,
                )
            )
        return deserialized

    def _put_back(self, records: list[Any]) -> None:
        """Put back records that were taken but not returned, so that they are read again."""
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for name, offset in firsts.items():
            self.planner.seek(name, offset)
        self.fetcher.kick()
