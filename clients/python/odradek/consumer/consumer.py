"""`Consumer`: reads records of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypedDict, Unpack

from odradek.cluster.cluster import Cluster, connect
from odradek.cluster.metadata_cache import Change, MetadataCache
from odradek.cluster.offset_lookup import look_up_offsets
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.cluster.turns import in_turns
from odradek.consumer.consumer_record import ConsumerRecord
from odradek.consumer.fetch_planner import ResetPolicy
from odradek.consumer.group_membership import GroupMembership
from odradek.consumer.options import (
    ConsumerOptions,
    Deserializer,
    GroupIdentity,
    GroupOptions,
    IsolationLevel,
)
from odradek.consumer.read_ahead import ReadAhead
from odradek.errors import ClientClosed, InvalidRequest, NotAssigned, RequestTimedOut
from odradek.partitions import (
    EARLIEST,
    INT64_MAX,
    LATEST,
    ByPartition,
    OffsetAndTimestamp,
    PartitionLike,
    TopicPartition,
    as_partition,
    as_partitions,
    require_offset,
)
from odradek_protocol.records.columns import ALL_COLUMNS, Column, Columns

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_MAX = 5_000
ARROW_BYTES_MAX = 16 * 1024 * 1024
_ITERATION_RECORDS_MAX = 1_000
_PARTITIONS_IN_REPR: Final = 4


class ConsumerArguments(TypedDict, total=False):
    """The fields of `ConsumerOptions`, as keyword arguments."""

    auto_offset_reset: ResetPolicy
    isolation_level: IsolationLevel
    prefetch_bytes_max: int
    fetch_message_bytes_max: int
    fetch_bytes_min: int
    fetch_wait_ms_max: int
    client_rack: str
    request_timeout_ms: int
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


class Consumer:
    """Reads records of topics: `async with Consumer("topic", bootstrap="host:9090") as consumer:`.

    A consumer reads all partitions of the given topics or, with `group`, those that the consumer group assigns to it.
    Without topics, it reads the partitions given to `assign`. Iterate over the consumer, or call `getmany` or
    `getarrow`; each continues after the last returned record. A consumer can only be used on the event loop of its
    first use. It fetches records in advance, up to `prefetch_bytes_max`, and follows partitions to new leaders.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Sequence[str] | None = None,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        cluster: Cluster | None = None,
        group: str | GroupOptions | None = None,
        **arguments: Unpack[ConsumerArguments],
    ) -> None:
        self.options = ConsumerOptions(**arguments)
        self._owns_cluster = cluster is None
        self._cluster = cluster or connect(bootstrap, tls, credentials=credentials)
        self._ahead = ReadAhead(self._cluster, self.options)
        self._planner, self._fetcher = self._ahead.planner, self._ahead.fetcher
        self._decoded, self._withdrawn = self._ahead.decoded, self._ahead.withdrawn
        self._source: AssignmentSource = WholeTopics(topics)
        self._is_source_new = bool(topics) and group is None
        self._has_subscription = bool(topics)
        self._seeks_to_come: int | None = None
        # The topics of `_source` whose partitions were assigned before, including topics that were deleted since.
        self._read_topics: set[str] = set()
        self._is_subscribed = False
        self._is_closing = self._is_closed = False
        self._member: GroupMembership | None = None
        if group is not None:
            options = GroupOptions(group=group) if isinstance(group, str) else group
            self._member = GroupMembership(self._cluster, options, self._source.topics, self._ahead)
            self._has_subscription |= options.pattern is not None

    def __repr__(self) -> str:
        names = self.assignment()
        reads = ", ".join(map(str, names[:_PARTITIONS_IN_REPR])) or "nothing yet"
        if len(names) > _PARTITIONS_IN_REPR:
            reads += f", ... ({len(names)} partitions)"
        group = "" if self._member is None else f", group {self._member.options.group!r}"
        state = "closed" if self._is_closed else f"reads {reads}"
        return f"<odradek.Consumer {self._cluster}{group}, {state}>"

    async def __aenter__(self) -> Self:
        if self._member is not None and self._has_subscription:
            self._member.start()
        if self._is_source_new:
            try:
                await self._learn_topics()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._member is not None:
            await self._member.close(is_processed=False)
        await self.close()

    async def close(self) -> None:
        """Leave the group and stop fetching. Pending reads raise ClientClosed. Group listeners may call this method,
        too.
        """
        if self._is_closed or self._is_closing:
            return
        self._is_closing = True
        try:
            if self._member is not None:
                await self._member.close()
            self._is_closed = True
            self._cluster.unsubscribe(self._on_change)
            await self._fetcher.close()
            if self._owns_cluster:
                await self._cluster.close()
        finally:
            self._is_closing = False

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read exactly these partitions from now on. Partitions that were already assigned keep their position.

        Raises:
            InvalidRequest: the consumer is a member of a group, which assigns its partitions.
        """
        if self._member is not None:
            raise InvalidRequest(
                f"the group {self._member.options.group!r} assigns partitions to its members",
                hint="`subscribe` to topics, or read without `group`",
            )
        self._use(FixedPartitions(as_partitions(partitions)))

    def subscribe(self, *topics: str) -> None:
        """Read all present and future partitions of these topics; as a group member, those that the group assigns."""
        source = WholeTopics(topics)
        if self._member is None:
            self._use(source)
        else:
            self._has_subscription = True
            self._member.subscribe(source.topics)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are assigned to this consumer now."""
        return list(self._planner.partitions)

    def seek(self, partition: PartitionLike, offset: int) -> None:
        """Continue to read a partition at this offset. Raises NotAssigned."""
        require_offset(offset, partition)
        name = self._assigned(partition)
        self._planner.seek(name, offset)
        self._ahead.forget_decoded(name)

    def seek_to_beginning(self, *partitions: PartitionLike) -> None:
        """Continue with the first record in the log of these partitions; without arguments, of all assigned ones."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: PartitionLike) -> None:
        """Continue with records written to these partitions from now on; without arguments, to all assigned ones."""
        self._seek_to(LATEST, partitions)

    def seek_to_timestamp(self, timestamp_ms: int, *partitions: PartitionLike) -> None:
        """Continue with the first record at or after this time (in ms since the Unix epoch), or at the end if there is
        no such record. Without partitions, this applies to all assigned partitions.
        """
        if timestamp_ms < 0:
            raise ValueError(f"timestamp {timestamp_ms} ms is before 1970")
        if timestamp_ms > INT64_MAX:
            raise ValueError(f"timestamp {timestamp_ms} ms has more than 64 bits")
        self._seek_to(timestamp_ms, partitions)

    def pause(self, *partitions: PartitionLike) -> None:
        """Return no records of these partitions until `resume`; without arguments, of all assigned ones. Positions are
        kept.
        """
        names = self._assigned_or_all(partitions)
        self._ahead.withdraw(names)
        for name in names:
            self._planner.pause(name)
        self._fetcher.kick()

    def resume(self, *partitions: PartitionLike) -> None:
        """Return records of these partitions again; without arguments, of all assigned partitions."""
        for name in self._assigned_or_all(partitions):
            self._planner.resume(name)
        self._fetcher.kick()

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return [name for name, p in self._planner.partitions.items() if p.is_paused]

    async def commit(self, offsets: ByPartition[int] | None = None) -> None:
        """Commit these offsets for the group. Each is the offset of the next record to read. Without `offsets`, commit
        the positions after all records that were returned so far.

        Raises:
            NotAssigned: the consumer has no group.
            MemberFenced: nothing was committed, because the group removed this member.
            OdradekError: the commit failed for another reason. Some or all of the offsets may have been committed.
        """
        chosen: dict[TopicPartition, int] = {}
        async for partition, offset in in_turns(list((offsets or {}).items())):
            require_offset(offset, partition)
            chosen[as_partition(partition)] = offset
        member = self._membership()
        self._require_use()
        await member.commit(None if offsets is None else chosen)

    def group_identity(self) -> GroupIdentity:
        """Return the identity of this group member, for `transaction.send_offsets`.

        Raises:
            NotAssigned: the consumer has no group.
        """
        return self._membership().identity()

    def leave_commits_to_transactions(self, offsets: ByPartition[int]) -> GroupIdentity:
        """Stop committing offsets, because a transactional producer commits these offsets and all later ones. Return
        the identity of this group member. Raises MemberFenced if one of the partitions was revoked.
        """
        return self._membership().leave_commits({as_partition(p): at for p, at in offsets.items()})

    async def committed(
        self, partitions: Iterable[PartitionLike] = ()
    ) -> dict[TopicPartition, int | None]:
        """Return the group's committed offset of each of these partitions, by default of all assigned ones. None: the
        partition has no committed offset. Raises NotAssigned if the consumer has no group.
        """
        names = as_partitions(partitions) or list(self._planner.partitions)
        return await self._membership().committed(names) if names else {}

    async def lag(self) -> dict[TopicPartition, int]:
        """Return, for each assigned partition with a known position, how many records follow it up to the end
        offset.
        """
        positions = self.positions()
        ends = await self.end_offsets(list(positions))
        return {name: max(0, end - positions[name]) for name, end in ends.items()}

    def _membership(self) -> GroupMembership:
        if self._member is None:
            raise NotAssigned(
                "this consumer has no group", hint="create the consumer with group=..."
            )
        return self._member

    def _end_read(self) -> None:
        if self._member is not None:
            self._member.read_ended()

    def _begin_read(self) -> None:
        if self._member is not None and self._has_subscription:
            self._member.start()
            self._member.read_begins()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record. Waits without a time limit. Raises the errors of `getmany`."""
        decoded, withdrawn = self._decoded, self._withdrawn
        while True:
            while not decoded:
                self._ahead.decode(await self._read(None, _ITERATION_RECORDS_MAX))
            record = decoded.popleft()
            if not withdrawn or (record.topic, record.partition) not in withdrawn:
                return record

    def next_decoded(self) -> ConsumerRecord | None:
        """Return the next decoded record without waiting; None if there is none. Only one thread at a time may call
        this method.
        """
        return self._ahead.next_decoded()

    async def getmany(
        self, timeout_ms: int | None = None, max_records: int = RECORDS_MAX, *, min_bytes: int = 0
    ) -> list[ConsumerRecord]:
        """Return up to `max_records` records: those that were already fetched or, if there are none, the first that
        arrive.

        The result is empty if no records arrive within `timeout_ms` (None: no limit). Records of a partition are in
        order. With `min_bytes`, the call waits until batches of that total size have arrived, or until the timeout.
        `min_bytes` is limited to half of the bytes that may be fetched in advance from one broker.

        Raises:
            OffsetOutOfRange: the position is not in the log, and auto_offset_reset is "error".
            UnknownTopic, AuthorizationFailed: a partition cannot be read.
            CorruptRecords: a batch is damaged. The next read fetches the batch again.
        """
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}, but must be at least 1")
        decoded: list[ConsumerRecord] = []
        while len(decoded) < max_records and (record := self._ahead.next_decoded()) is not None:
            decoded.append(record)
        return decoded or await self._read(timeout_ms, max_records, min_bytes)

    async def getarrow(
        self,
        timeout_ms: int | None = None,
        *,
        bytes_max: int = ARROW_BYTES_MAX,
        columns: Column = ALL_COLUMNS,
    ) -> pa.Table:
        """Return fetched records as one Arrow table, from batches of about `bytes_max` bytes at most.

        The columns are topic, partition, offset, timestamp, key, value and headers, or those that `columns` selects.
        The table has no rows if no records arrive within `timeout_ms` (None: no limit). Deserializers are not applied.
        Raises the errors of `getmany`, and MissingDependency if pyarrow is not installed.
        """
        from odradek.consumer.arrow_tables import empty_table, record_batch_of, table_of

        parts = await self.getcolumns(timeout_ms, bytes_max=bytes_max, columns=columns)
        if not parts:
            return empty_table(columns)
        return table_of([record_batch_of(name, part) for name, part in parts])

    async def getcolumns(
        self,
        timeout_ms: int | None = None,
        *,
        bytes_max: int = ARROW_BYTES_MAX,
        columns: Column = ALL_COLUMNS,
    ) -> list[tuple[TopicPartition, Columns]]:
        """Return fetched records as column buffers, by partition. The columns are those of `getarrow`, but pyarrow is
        not needed.

        The result is empty if no records arrive within `timeout_ms` (None: no limit). Raises the errors of `getmany`.
        """
        self._ahead.put_back_decoded()
        self._begin_read()
        deadline_s = _deadline_s(timeout_ms)
        while True:
            await self._ready()
            parts = self._ahead.take_columns(bytes_max, columns)
            if parts:
                self._end_read()
                return parts
            if not await self._wait(deadline_s):
                return []

    async def position(self, partition: PartitionLike, timeout_ms: int = 30_000) -> int:
        """Return the offset of the next record to read. If the offset is not known yet, wait up to `timeout_ms` for it.

        Raises:
            NotAssigned: the partition is not assigned to this consumer.
            RequestTimedOut: the offset was not found in time.
        """
        name = self._assigned(partition)
        deadline_s = _deadline_s(timeout_ms)
        while True:
            await self._ready()
            position = self._ahead.position(self._assigned(name))
            if position >= 0:
                return position
            if not await self._wait(deadline_s):
                raise RequestTimedOut(
                    f"the position of {name} was not known within {timeout_ms} ms"
                )

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record to read, for each assigned partition whose position is known."""
        return {name: offset for name, (offset, _) in self._ahead.returned_offsets().items()}

    async def beginning_offsets(
        self, partitions: Iterable[PartitionLike], timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each of these partitions. The partitions need not be assigned."""
        return await self._ends(partitions, EARLIEST, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[PartitionLike], timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each of these partitions: the high watermark or, with read_committed, the last
        stable offset. The partitions need not be assigned.
        """
        return await self._ends(partitions, LATEST, timeout_ms)

    async def offsets_for_times(
        self, timestamps_ms: ByPartition[int], timeout_ms: int = 30_000
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of each partition's first record at or after a time, in ms since the Unix epoch. None:
        there is no such record.
        """
        offsets = await look_up_offsets(
            self._cluster,
            {as_partition(p): at for p, at in timestamps_ms.items()},
            read_committed=self.options.isolation_level == "read_committed",
            timeout_s=timeout_ms / 1000,
        )
        return {name: at if at.offset >= 0 else None for name, at in offsets.items()}

    def high_watermark(self, partition: PartitionLike) -> int:
        """Return the high watermark of a partition in the last fetch response; -1 before the first response. Raises
        NotAssigned.
        """
        return self._planner.partitions[self._assigned(partition)].high_watermark

    async def _read(
        self, timeout_ms: int | None, records_max: int, min_bytes: int = 0
    ) -> list[ConsumerRecord]:
        deadline_s = _deadline_s(timeout_ms)
        min_bytes = min(min_bytes, self._fetcher.window_bytes // 2)
        self._begin_read()
        await asyncio.sleep(0)  # Lets other tasks run, such as those that receive records.
        while True:
            await self._ready()
            if self._planner.buffered_bytes >= min_bytes:
                records = self._ahead.take(records_max)
                if records:
                    self._end_read()
                    return records
            if not await self._wait(deadline_s):
                if not min_bytes:
                    return []
                min_bytes = 0  # The timeout has passed, so fewer bytes are returned.

    async def _ready(self) -> None:
        """Fetch the metadata of newly subscribed topics and assign their partitions. If an error is pending, raise
        that error.
        """
        self._require_use()
        self._cluster.require_own_loop()
        if self._is_source_new:
            await self._learn_topics()
        if self._member is not None and self._member.refusal is not None:
            raise self._member.refusal
        if self._planner.errors:
            raise self._planner.errors.popleft()

    def _require_use(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")
        if not self._has_subscription:
            raise NotAssigned(
                "this consumer has no subscription and no assignment",
                hint="`subscribe` or `assign` first",
            )

    async def _wait(self, deadline_s: float | None) -> bool:
        """Wait until records, an error or a position arrive. Return False if the deadline passes first."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._fetcher.arrival()
        except TimeoutError:
            return False
        return True

    def _use(self, source: AssignmentSource) -> None:
        self._source = source
        self._read_topics.intersection_update(source.topics)
        self._has_subscription = True
        self._seeks_to_come = None
        self._is_source_new = isinstance(source, WholeTopics) and bool(source.topics)
        if not self._is_source_new:
            self._assign_from_source()

    async def _learn_topics(self) -> None:
        self._is_source_new = False
        self._cluster.start()
        if not self._is_subscribed:
            self._is_subscribed = True
            self._cluster.subscribe(self._on_change)
        source = self._source
        try:
            for topic in sorted(source.topics):
                await self._cluster.topic(topic, timeout_s=self.options.request_timeout_ms / 1000)
        except BaseException:
            self._is_source_new = True
            raise
        if self._source is source:
            self._assign_from_source()

    def _assign_from_source(self) -> None:
        topics = {name.topic for name in self._planner.partitions}
        new = self._ahead.assign(self._source.partitions(self._cluster.cache))
        if self._seeks_to_come is not None:
            for name in new:
                self._planner.seek_to_timestamp(name, self._seeks_to_come)
        if isinstance(self._source, WholeTopics):
            if self.options.auto_offset_reset != "error":
                topics |= self._read_topics
            self._read_topics |= {name.topic for name in new}
            for name in new:
                # A new partition of a topic that was read before is read from its beginning, so that no record is
                # missed. This also applies to all partitions of a topic that was created again.
                if name.topic in topics:
                    self._planner.seek_to_timestamp(name, EARLIEST)

    def _on_change(self, change: Change) -> None:
        if self._is_source_new or not isinstance(self._source, WholeTopics):
            return
        if change.topics & self._source.topics:
            self._assign_from_source()

    def _seek_to(self, timestamp_ms: int, partitions: Sequence[PartitionLike]) -> None:
        if not partitions and self._is_source_new:
            self._seeks_to_come = timestamp_ms
            return
        for name in self._assigned_or_all(partitions):
            self._planner.seek_to_timestamp(name, timestamp_ms)
            self._ahead.forget_decoded(name)

    def _assigned(self, partition: PartitionLike) -> TopicPartition:
        name = as_partition(partition)
        if name not in self._planner.partitions:
            raise NotAssigned(f"{name} is not assigned to this consumer")
        return name

    def _assigned_or_all(self, partitions: Sequence[PartitionLike]) -> list[TopicPartition]:
        if not partitions:
            return list(self._planner.partitions)
        return [self._assigned(partition) for partition in partitions]

    async def _ends(
        self, partitions: Iterable[PartitionLike], which: int, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")
        offsets = await look_up_offsets(
            self._cluster,
            dict.fromkeys(as_partitions(partitions), which),
            read_committed=self.options.isolation_level == "read_committed",
            timeout_s=timeout_ms / 1000,
        )
        return {name: at.offset for name, at in offsets.items()}


def _deadline_s(timeout_ms: int | None) -> float | None:
    """Return the deadline on the clock of the running event loop, in seconds; None if there is no timeout."""
    if timeout_ms is None:
        return None
    return asyncio.get_running_loop().time() + timeout_ms / 1000


class FixedPartitions:
    """The partitions that the program assigned."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self._partitions = list(dict.fromkeys(partitions))
        self.topics = frozenset(p.topic for p in self._partitions)

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        return self._partitions


class WholeTopics:
    """All partitions of topics, including partitions that are added later."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = list(topics)
        for name in names:
            if not isinstance(name, str):
                raise InvalidRequest(
                    f"{name!r} is not the name of a topic",
                    hint="pass each topic as its own argument: 'orders', 'payments'",
                )
        self.topics = frozenset(names)

    def partitions(self, cache: MetadataCache) -> list[TopicPartition]:
        return [
            TopicPartition(name, partition.partition)
            for name in sorted(self.topics)
            if (topic := cache.topic(name)) is not None
            for partition in topic.partitions
        ]


AssignmentSource: TypeAlias = FixedPartitions | WholeTopics
"""Determines the partitions to read. `partitions` is called again after each change of the metadata."""
