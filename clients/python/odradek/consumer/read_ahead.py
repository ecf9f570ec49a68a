"""What a consumer was sent, in the order in which its program gets it.

    fetcher --chunks--> planner --take, take_columns--> program
                                --decode--> decoded --next_decoded--> program

Iteration decodes many records at once and hands them out one by one, with `odradek.sync` in another thread
than the loop's. Meanwhile the loop may want some back: a partition is revoked, paused, or sought elsewhere. So the
loop never takes from `decoded`. It names the partition in `withdrawn`, and whoever takes a record of it passes it over;
both are emptied together, by the next `decode`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.cluster.cluster import Cluster
from odradek.consumer.consumer_record import ConsumerRecord, DeserializedRecord
from odradek.consumer.fetch_planner import FetchPlanner
from odradek.consumer.fetcher import Fetcher
from odradek.consumer.options import ConsumerOptions
from odradek.errors import CorruptRecords, OdradekError, SerializationFailed
from odradek.partitions import TopicPartition
from odradek_protocol.records.columns import Column, ColumnBuilder

if TYPE_CHECKING:
    import pyarrow as pa


class ReadAhead:
    """Belongs to one consumer and its loop."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self.planner = FetchPlanner(
            reset=options.auto_offset_reset,
            read_committed=options.isolation_level == "read_committed",
        )
        self.fetcher = Fetcher(cluster, self.planner, options)
        self.decoded: deque[ConsumerRecord] = deque()
        self.withdrawn: set[TopicPartition] = set()
        self._options = options

    # --- handing out ------------------------------------------------------------------------------

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """The next records that are there, deserialized. Raises CorruptRecords, SerializationFailed."""
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

    def take_columns(self, bytes_max: int, columns: Column) -> list[pa.RecordBatch]:
        """The next records that are there, a batch a partition. Raises CorruptRecords."""
        from odradek.consumer.arrow_tables import record_batch_of

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
            except OverflowError:  # a column holds 2 GiB: the rest is for the next table
                progress.position = max(progress.position, chunk.read_offset)
                break
            taken_bytes += chunk.size_bytes
            planner.finish_chunk()
            if progress.is_drained:
                self.fetcher.kick()
        self._after_read()
        return [
            record_batch_of(name, builder)
            for name, builder in builders.items()
            if builder.row_count
        ]

    def decode(self, records: Sequence[ConsumerRecord]) -> None:
        """Keep these, just taken, for `next_decoded`; there are none left from before."""
        assert not self.decoded, f"{len(self.decoded)} records are still to be handed out"
        self.withdrawn.clear()
        self.decoded.extend(records)

    def next_decoded(self) -> ConsumerRecord | None:
        """The next of the records that iteration has decoded. Any one thread may call it."""
        decoded, withdrawn = self.decoded, self.withdrawn
        while decoded:
            record = decoded.popleft()
            if not withdrawn or (record.topic, record.partition) not in withdrawn:
                return record
        return None

    def put_back_decoded(self) -> None:
        """What iteration has decoded and not handed out is to be read again."""
        for name in self._first_decoded():
            self.withdraw(name)

    # --- partitions -------------------------------------------------------------------------------

    def assign(self, names: Sequence[TopicPartition]) -> set[TopicPartition]:
        """Read exactly these from now on; tells which of them are new."""
        before = set(self.planner.partitions)
        self.planner.assign(names)
        now = set(self.planner.partitions)
        for name in before - now:
            self.forget_decoded(name)
        self.fetcher.kick()
        return now - before

    def position(self, name: TopicPartition) -> int:
        """Offset of the next record to be handed out; below 0: not known yet."""
        first = self._first_decoded().get(name)
        return self.planner.partitions[name].position if first is None else first

    def withdraw(self, name: TopicPartition) -> None:
        """Hand out none of what is decoded of it; it is to be read again."""
        first = self._first_decoded().get(name)
        if first is not None:
            self.planner.seek(name, first)
            self.forget_decoded(name)

    def forget_decoded(self, name: TopicPartition) -> None:
        """Hand out none of what is decoded of it: the program wants other records, or none."""
        if self.decoded:
            self.withdrawn.add(name)
        self.fetcher.kick()

    # --- for the group's membership ---------------------------------------------------------------

    def take_over(
        self, owned: Sequence[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Read exactly these; new ones from `starts`, and hand out nothing of them before `release`."""
        for name in self.assign(owned):
            self.planner.hold(name)
            if name in starts:
                self.planner.seek(name, starts[name])

    def hold(self, names: Sequence[TopicPartition]) -> None:
        """Hand out nothing more of these, which are about to go."""
        for name in names:
            if name in self.planner.partitions:
                self.withdraw(name)
                self.planner.hold(name)

    def release(self, names: Sequence[TopicPartition]) -> None:
        """The program knows that it has these: begin to hand them out."""
        for name in names:
            if name in self.planner.partitions:
                self.planner.release(name)
        self.fetcher.kick()

    def handed_out(self) -> dict[TopicPartition, tuple[int, int]]:
        """Per partition with a position: the offset after the last record handed out, and its epoch."""
        handed = {
            name: (progress.position, progress.last_epoch)
            for name, progress in self.planner.partitions.items()
            if progress.position >= 0
        }
        for name, offset in self._first_decoded().items():
            handed[name] = (offset, -1)
        return handed

    def fail(self, error: OdradekError) -> None:
        """The next read raises this."""
        self.planner.raise_soon(error)
        self.fetcher.kick()

    # --- inside -----------------------------------------------------------------------------------

    def _first_decoded(self) -> dict[TopicPartition, int]:
        """Per partition the offset of the first record that iteration has yet to hand out."""
        firsts: dict[TopicPartition, int] = {}
        for record in list(self.decoded):  # a copy: another thread may take some meanwhile
            name = TopicPartition(str(record.topic), record.partition)
            if name not in self.withdrawn:
                firsts.setdefault(name, record.offset)
        return firsts

    def _after_read(self) -> None:
        self.fetcher.return_credit()
        if not self.planner.chunks:
            self.fetcher.kick()

    def _deserialized(self, records: list[Any]) -> list[ConsumerRecord]:
        of_key, of_value = self._options.key_deserializer, self._options.value_deserializer
        if of_key is None and of_value is None:
            return records
        made: list[ConsumerRecord] = []
        for index, r in enumerate(records):
            try:
                key = r.key if of_key is None else of_key(r.key)
                value = r.value if of_value is None else of_value(r.value)
            except Exception as error:
                if made:
                    self._put_back(records[index:])
                    return made
                self._put_back(records[index + 1 :])
                raise SerializationFailed(
                    f"the record at offset {r.offset} of {r.topic}-{r.partition} cannot be"
                    f" deserialized: {error!r}",
                    hint="it is passed over if you read on",
                ) from error
            made.append(
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
        return made

    def _put_back(self, records: list[Any]) -> None:
        """Records that were taken but are not handed out are to be read again."""
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for name, offset in firsts.items():
            self.planner.seek(name, offset)
        self.fetcher.kick()
