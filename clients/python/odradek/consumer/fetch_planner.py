"""Decides, without I/O, from which broker each partition of a consumer is fetched, and buffers the fetched records.

A partition goes through these stages:

    unpositioned   its offset must be looked up first (`FetchPlan.lookups`; result: `position_found`)
    unvalidated    the leader epoch changed since the last record was read, so the log may have been truncated
                   (KIP-320; `FetchPlan.validations`; result: `validated`)
    ready          `plan` adds it to the stream of its leader
    fetching       `fetched` receives its records

A call that changes the stage of a partition, or a condition that its stage depends on, adds the partition to
`_undecided`. `plan` takes partitions from `_undecided` and decides their next steps. So planning costs time only for
partitions that changed. If thousands of partitions changed, they are planned in several calls, and other tasks run
between the calls.

A partition becomes ready again when its leader changes, its stream breaks, or the broker responds with a retriable
error (after a pause). It becomes unpositioned when its fetch offset is out of range; with the reset policy "error", the
next read then raises an error, and the partition waits for `seek`. Errors that are not retriable are stored in
`errors`, and the next read raises them.

A position is valid for one topic id only. If a topic is deleted and created again, its partitions are read from the
beginning, because all records of the new topic are new to the program; with the policy "error", the next read raises an
error. A partition that a group assigned is not read until the group assigns the partition of the new topic.

A partition has two offsets: `position` is the offset of the next record to return, and `fetch_offset` the offset of the
next record to arrive. The records between them are in `chunks`. Each time a partition is added to a stream, it gets a
new `fetch_id`, which the broker repeats in responses. A response with another id was sent before a seek, a pause or a
change of the leader, and is dropped.

Memory is limited by credit. A broker may send only as many bytes as it was granted, over all of its streams. Bytes that
were read or dropped are granted again. A paused partition is removed from its stream and its chunks are dropped, so
that it does not use credit that other partitions need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, TypeAlias

from odradek.cluster.backoff import Backoff
from odradek.consumer.fetched_chunk import (
    UNKNOWN,
    FetchAdd,
    FetchedChunk,
    PartitionProgress,
    StreamChange,
)
from odradek.errors import LogTruncated, OdradekError, OffsetOutOfRange, error_of
from odradek.partitions import EARLIEST, LATEST, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import FetchedPartition

ResetPolicy: TypeAlias = Literal["earliest", "latest", "error"]
TopicIdOf: TypeAlias = Callable[[str], bytes]
"""Topic -> its id in the metadata; b"" if the topic is not in the metadata."""
LeaderOf: TypeAlias = Callable[[TopicPartition], tuple[str, int] | None]
"""Partition -> (endpoint, leader epoch) of its leader; None while there is no leader with a known address."""

ERRORS_MAX = 100
UNKNOWN_TOPIC_MS_MAX = 10_000
PARTITIONS_PER_PLAN: Final = 500
"""One partition costs up to 10 us, so one call of `plan` takes a few milliseconds."""
_RESETS: dict[str, int] = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(slots=True)
class FetchPlan:
    """The next steps for those partitions that one call of `plan` decided. The caller carries them out."""

    decided: list[TopicPartition] = field(default_factory=list)
    lookups: dict[TopicPartition, int] = field(default_factory=dict)
    """By partition: the timestamp whose offset must be looked up, which may be EARLIEST or LATEST."""
    validations: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions to check for truncation, with the leader epoch of the last record that was read."""
    changes: dict[str, StreamChange] = field(default_factory=dict)
    """The changes to each stream, by endpoint."""


class FetchPlanner:
    """The partitions of one consumer, their fetched records, and the decision what to fetch next."""

    def __init__(
        self,
        *,
        reset: ResetPolicy = "latest",
        read_committed: bool = False,
        backoff: Backoff | None = None,
        topic_id_of: TopicIdOf = lambda _: b"",
    ) -> None:
        self.partitions: dict[TopicPartition, PartitionProgress] = {}
        self.chunks: deque[FetchedChunk] = deque()
        self.errors: deque[OdradekError] = deque(maxlen=ERRORS_MAX)
        self.buffered_bytes = 0
        self.wants_refresh = False
        """Whether a response showed that the metadata is stale. The fetcher resets this when it requests new
        metadata.
        """
        self._reset: ResetPolicy = reset
        self._read_committed = read_committed
        self._topic_id_of = topic_id_of
        self._backoff = backoff or Backoff(first_ms=20, most_ms=1_000)
        self._undecided: dict[TopicPartition, None] = {}
        """The partitions whose next step `plan` must decide, in this order."""
        self._pausing: set[TopicPartition] = set()
        """The partitions that wait until their `not_before_ms` after an error."""
        self._next_fetch_id = 0
        self._changes: dict[str, StreamChange] = {}
        self._credit_due: dict[int, int] = {}

    def assign(
        self,
        names: Iterable[TopicPartition],
        *,
        suspended_from: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read exactly these partitions from now on. Partitions that are already read keep their position.

        With `suspended_from`, a new partition starts at its offset in that mapping, if the mapping contains the
        partition, and none of its records is returned until `release`.
        """
        assigned = dict.fromkeys(names)
        for name in [n for n in self.partitions if n not in assigned]:
            self._stop(self.partitions[name])
            self._drop_chunks(name)
            del self.partitions[name]
            self._undecided.pop(name, None)
            self._pausing.discard(name)
        for name in assigned:
            if name not in self.partitions:
                start = UNKNOWN if suspended_from is None else suspended_from.get(name, UNKNOWN)
                self.partitions[name] = PartitionProgress(
                    name,
                    position=start,
                    fetch_offset=start,
                    is_suspended=suspended_from is not None,
                    is_of_group=suspended_from is not None,
                )
                self._undecided[name] = None

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Continue the partition at this offset."""
        progress = self.partitions[name]
        self._restart(progress)
        progress.position = progress.fetch_offset = offset
        progress.lookup_ms = None
        progress.is_looking_up = False  # The result of a look-up in progress is ignored.
        progress.last_epoch = progress.validated_epoch = -1

    def seek_to_timestamp(self, name: TopicPartition, timestamp_ms: int) -> None:
        """Continue the partition at the offset for this timestamp, which may be EARLIEST or LATEST."""
        progress = self.partitions[name]
        self._restart(progress)
        progress.position = progress.fetch_offset = UNKNOWN
        progress.lookup_ms = timestamp_ms
        progress.is_looking_up = False
        progress.last_epoch = progress.validated_epoch = -1

    def pause(self, name: TopicPartition) -> None:
        """Stop returning records of the partition until `resume`. The partition keeps its position."""
        progress = self.partitions[name]
        if not progress.is_paused:
            self._restart(progress)
            progress.is_paused = True

    def resume(self, name: TopicPartition) -> None:
        """Continue at the position of the partition."""
        self.partitions[name].is_paused = False
        self._undecided[name] = None

    def suspend(self, name: TopicPartition) -> None:
        """Stop returning records of the partition until `release`, even if the program calls `resume`. The group
        membership calls this method.
        """
        progress = self.partitions[name]
        self._restart(progress)
        progress.is_suspended = True

    def release(self, name: TopicPartition) -> None:
        """Continue at the position of the partition, unless the program has paused it."""
        self.partitions[name].is_suspended = False
        self._undecided[name] = None

    def raise_soon(self, error: OdradekError) -> None:
        """Make the next read raise this error. An error that is reported several times before that read is raised
        once.
        """
        if all(str(pending) != str(error) for pending in self.errors):
            self.errors.append(error)

    @property
    def has_undecided(self) -> bool:
        """Whether `plan` must be called again, because it has not decided all partitions."""
        return bool(self._undecided)

    def moved(self, names: Iterable[TopicPartition]) -> bool:
        """Decide again about these partitions, because their leader, leader epoch or leader address changed. Partitions
        that are not assigned are ignored. Return whether any of them is assigned.
        """
        assigned = [name for name in names if name in self.partitions]
        for name in assigned:
            self.partitions[name].not_before_ms = 0
            self._undecided[name] = None
        return bool(assigned)

    def plan(self, leader_of: LeaderOf, now_ms: int) -> FetchPlan:
        """Decide the next step of up to PARTITIONS_PER_PLAN partitions that changed since the last call."""
        for name in [n for n in self._pausing if self.partitions[n].not_before_ms <= now_ms]:
            self._pausing.discard(name)
            self._undecided[name] = None
        plan = FetchPlan(list(islice(self._undecided, PARTITIONS_PER_PLAN)))
        for name in plan.decided:
            del self._undecided[name]
            self._decide(self.partitions[name], leader_of(name), now_ms, plan)
        plan.changes, self._changes = self._changes, {}
        return plan

    def use_replica(self, name: TopicPartition, endpoint: str, leader_epoch: int) -> None:
        """Fetch from the replica that the leader recommended (KIP-392)."""
        progress = self.partitions[name]
        self._stop(progress)
        self._add(progress, endpoint, leader_epoch)

    def replica_unknown(self, name: TopicPartition, now_ms: int) -> None:
        """Fetch from the leader again after a pause, because the address of the recommended replica is not known."""
        progress = self.partitions[name]
        self._stop(progress)
        self._pause_for_a_while(progress, now_ms)

    def position_found(self, name: TopicPartition, lookup_ms: int, offset: int) -> None:
        """Apply the result of a look-up, unless the program has called `seek` in the meantime."""
        progress = self.partitions.get(name)
        if progress is None or progress.lookup_ms != lookup_ms or not progress.is_looking_up:
            return
        progress.is_looking_up = False
        progress.lookup_ms = None
        progress.position = progress.fetch_offset = offset
        self._undecided[name] = None

    def lookup_at_end(self, name: TopicPartition, lookup_ms: int) -> None:
        """Look up the end of the log instead, because no record is at or after the timestamp."""
        progress = self.partitions.get(name)
        if progress is not None and progress.lookup_ms == lookup_ms:
            progress.lookup_ms = LATEST
            progress.is_looking_up = False
            self._undecided[name] = None

    def lookup_failed(self, name: TopicPartition, lookup_ms: int) -> None:
        """Make the next `plan` look up the offset again."""
        progress = self.partitions.get(name)
        if progress is not None and progress.lookup_ms == lookup_ms:
            progress.is_looking_up = False
            self._undecided[name] = None

    def validated(
        self, name: TopicPartition, checked_epoch: int, end_offset: int | None, leader_epoch: int
    ) -> None:
        """Apply the result of a truncation check for the leader epoch `checked_epoch`.

        `end_offset` is the offset at which that epoch ends in the log. None: the check must be repeated.
        """
        progress = self.partitions.get(name)
        if progress is None or not progress.is_validating:
            return
        progress.is_validating = False
        self._undecided[name] = None
        if end_offset is None or progress.last_epoch != checked_epoch:
            return
        progress.validated_epoch = leader_epoch
        if 0 <= end_offset < progress.position:
            truncation = LogTruncated(
                f"{name}: the log was truncated to offset {end_offset}, but records up to"
                f" {progress.position} had been read",
                truncated_to=end_offset,
            )
            self._restart(progress)
            if self._reset == "error":
                self.raise_soon(truncation)
            progress.position = progress.fetch_offset = end_offset
            progress.last_epoch = -1
        elif 0 <= end_offset < progress.fetch_offset:
            # Buffered records after the position may have been truncated.
            self._restart(progress)

    def wake_ms(self, now_ms: int) -> int | None:
        """Return when the next pause after an error ends; None if no partition pauses."""
        times = (self.partitions[name].not_before_ms for name in self._pausing)
        return min((at_ms for at_ms in times if at_ms > now_ms), default=None)

    def fetched(self, source: int, entry: FetchedPartition, now_ms: int) -> None:
        """Add the data of one partition from a fetch response. `source` is the number of the broker that sent the
        response.
        """
        data = entry.header
        size_bytes = len(entry.records)
        progress = self.partitions.get(TopicPartition(data.topic, data.partition))
        if progress is None or progress.fetch_id != data.fetch_id or progress.endpoint is None:
            self._give_back(source, size_bytes)
            return
        if data.error_code != ErrorCode.NONE:
            self._give_back(source, size_bytes)
            progress.log_start_offset = max(progress.log_start_offset, data.log_start_offset)
            self._refused(progress, data.error_code, data.error_message, now_ms)
            return
        # With a preferred replica, `replica_unknown` may follow, and must find the number of earlier failures.
        if data.preferred_read_replica < 0:
            progress.failures = 0
            progress.failing_since_ms = -1
        progress.high_watermark = data.high_watermark
        progress.last_stable_offset = data.last_stable_offset
        progress.log_start_offset = data.log_start_offset
        if data.end_reached:
            progress.is_end_reached = True
        if size_bytes:
            aborted = None
            if self._read_committed:
                aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions]
            self.chunks.append(
                FetchedChunk(
                    progress.name,
                    entry.records,
                    next_offset=data.next_offset,
                    source=source,
                    aborted=aborted,
                )
            )
            self.buffered_bytes += size_bytes
            progress.buffered += 1
        progress.fetch_offset = max(progress.fetch_offset, data.next_offset)
        if not progress.buffered:  # Skips offsets without records, such as compacted ones.
            progress.position = max(progress.position, progress.fetch_offset)

    def stream_broke(self, endpoint: str, now_ms: int) -> None:
        """Stop fetching the partitions of a broken stream. Their buffered records are kept."""
        self._changes.pop(endpoint, None)
        for progress in self.partitions.values():
            if progress.endpoint == endpoint:
                progress.endpoint = None
                progress.preferred_replica = -1
                self._pause_for_a_while(progress, now_ms)

    def next_chunk(self) -> tuple[FetchedChunk, PartitionProgress] | None:
        """Return the next chunk to read, with the state of its partition; None if nothing is buffered."""
        if not self.chunks:
            return None
        chunk = self.chunks[0]
        return chunk, self.partitions[chunk.name]

    def finish_chunk(self) -> None:
        """Drop the chunk that `next_chunk` returned, because all its records were read."""
        chunk = self.chunks.popleft()
        progress = self.partitions[chunk.name]
        progress.position = max(progress.position, chunk.next_offset)
        if chunk.leader_epoch >= 0:
            progress.last_epoch = chunk.leader_epoch
        self._release(chunk, progress)
        if progress.is_drained:
            self._undecided[chunk.name] = None

    def reject_chunk(self) -> None:
        """Drop all chunks of the partition whose first chunk is damaged, and fetch the partition again from its
        position.
        """
        progress = self.partitions[self.chunks[0].name]
        self._restart(progress)

    def credit_due(self, source: int, least_bytes: int) -> int:
        """Return how many bytes to grant to the broker `source`; 0 while they are fewer than `least_bytes`."""
        due_bytes = self._credit_due.get(source, 0)
        if due_bytes < least_bytes:
            return 0
        del self._credit_due[source]
        return due_bytes

    def reopen_source(self, source: int) -> int:
        """Return how many bytes from a broker's earlier streams are not read yet. They reduce the credit of its new
        stream.
        """
        self._credit_due.pop(source, None)
        return sum(chunk.size_bytes for chunk in self.chunks if chunk.source == source)

    def _decide(
        self,
        progress: PartitionProgress,
        target: tuple[str, int] | None,
        now_ms: int,
        plan: FetchPlan,
    ) -> None:
        """Decide the next step of one partition. `target` is the endpoint and leader epoch of its leader; None: no
        leader.
        """
        topic_id = self._topic_id_of(progress.name.topic)
        if not progress.topic_id:
            progress.topic_id = topic_id
        elif topic_id not in (b"", progress.topic_id):
            self._restart(progress)
            if progress.is_of_group:
                return
            progress.topic_id = topic_id
            self._begin_new_topic(progress)
        if progress.position == UNKNOWN:
            self._look_up(progress, plan)
            return
        if target is None:
            return
        endpoint, leader_epoch = target
        if not progress.is_validating and progress.needs_check(leader_epoch):
            progress.is_validating = True
            plan.validations[progress.name] = progress.last_epoch
        if (
            progress.endpoint is not None
            and progress.preferred_replica < 0
            and (endpoint != progress.endpoint or leader_epoch > progress.fetch_epoch)
        ):
            self._stop(progress)
        if progress.endpoint is None:
            self._begin(progress, endpoint, leader_epoch, now_ms)

    def _look_up(self, progress: PartitionProgress, plan: FetchPlan) -> None:
        """Plan the look-up of a start offset. With the reset policy "error", a missing start offset is an error."""
        if progress.is_looking_up:
            return
        progress.is_looking_up = True
        if progress.lookup_ms is None:
            if self._reset == "error":  # `is_looking_up` stays set until the program calls `seek`.
                self.raise_soon(OffsetOutOfRange(f"{progress.name} has no position to start at"))
                return
            progress.lookup_ms = _RESETS[self._reset]
        plan.lookups[progress.name] = progress.lookup_ms

    def _begin_new_topic(self, progress: PartitionProgress) -> None:
        progress.lookup_ms = EARLIEST
        progress.position = progress.fetch_offset = UNKNOWN
        progress.last_epoch = progress.validated_epoch = -1
        progress.is_looking_up = False
        if self._reset == "error":
            progress.is_looking_up = True  # This stays set until the program calls `seek`.
            self.raise_soon(
                OffsetOutOfRange(
                    f"{progress.name} has no position: its topic was deleted and created again"
                )
            )

    def _begin(
        self, progress: PartitionProgress, endpoint: str, leader_epoch: int, now_ms: int
    ) -> None:
        if (
            progress.is_paused
            or progress.is_suspended
            or progress.is_validating
            or progress.not_before_ms > now_ms
            or (progress.must_drain and progress.buffered)
        ):
            return
        progress.must_drain = False
        self._add(progress, endpoint, leader_epoch)

    def _add(self, progress: PartitionProgress, endpoint: str, leader_epoch: int) -> None:
        self._next_fetch_id += 1
        progress.fetch_id = self._next_fetch_id
        progress.endpoint = endpoint
        progress.fetch_epoch = leader_epoch
        change = self._change_of(endpoint)
        change.remove.discard(progress.name)
        change.add[progress.name] = FetchAdd(
            progress.name, progress.fetch_offset, leader_epoch, progress.fetch_id
        )

    def _change_of(self, endpoint: str) -> StreamChange:
        change = self._changes.get(endpoint)
        if change is None:
            change = self._changes[endpoint] = StreamChange()
        return change

    def _stop(self, progress: PartitionProgress) -> None:
        """Remove a partition from its stream. Its buffered records are kept."""
        if progress.endpoint is not None:
            change = self._change_of(progress.endpoint)
            change.add.pop(progress.name, None)
            change.remove.add(progress.name)
            progress.endpoint = None
            progress.preferred_replica = -1

    def _restart(self, progress: PartitionProgress) -> None:
        """Remove a partition from its stream and drop its buffered records, so that it is fetched again from its
        position.
        """
        self._stop(progress)
        self._drop_chunks(progress.name)
        progress.fetch_offset = progress.position
        progress.must_drain = False
        progress.is_end_reached = False
        progress.is_validating = False
        progress.not_before_ms = 0
        self._undecided[progress.name] = None

    def _drop_chunks(self, name: TopicPartition) -> None:
        if self.partitions[name].buffered:
            kept: deque[FetchedChunk] = deque()
            for chunk in self.chunks:
                if chunk.name == name:
                    self._release(chunk, self.partitions[name])
                else:
                    kept.append(chunk)
            self.chunks = kept

    def _release(self, chunk: FetchedChunk, progress: PartitionProgress) -> None:
        progress.buffered -= 1
        self.buffered_bytes -= chunk.size_bytes
        self._give_back(chunk.source, chunk.size_bytes)

    def _give_back(self, source: int, size_bytes: int) -> None:
        if size_bytes:
            self._credit_due[source] = self._credit_due.get(source, 0) + size_bytes

    def _pause_for_a_while(self, progress: PartitionProgress, now_ms: int) -> None:
        progress.failures += 1
        if progress.failing_since_ms < 0:
            progress.failing_since_ms = now_ms
        self._pause_until(progress, now_ms + self._backoff.after(min(progress.failures, 8), 0.0))

    def _pause_until(self, progress: PartitionProgress, not_before_ms: int) -> None:
        progress.not_before_ms = not_before_ms
        self._pausing.add(progress.name)

    def _refused(self, progress: PartitionProgress, code: int, message: str, now_ms: int) -> None:
        progress.endpoint = None
        progress.preferred_replica = -1
        self._pause_for_a_while(progress, now_ms)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(progress)
            return
        error = error_of(code, str(progress.name), message)
        assert error.code is not None
        if not error.code.retriable:
            self.raise_soon(error)
            self._pause_until(progress, now_ms + 1_000)
            return
        self.wants_refresh = True
        if (
            error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            and now_ms - progress.failing_since_ms > UNKNOWN_TOPIC_MS_MAX
        ):
            progress.failing_since_ms = now_ms
            self.raise_soon(error)

    def _out_of_range(self, progress: PartitionProgress) -> None:
        # Buffered records are valid. They are returned first, and then the offset is looked up.
        if progress.buffered:
            progress.must_drain = True
            return
        offset = progress.position
        progress.not_before_ms = 0
        progress.position = progress.fetch_offset = UNKNOWN
        progress.last_epoch = -1
        if self._reset == "error":
            progress.is_looking_up = True  # This stays set until the program calls `seek`.
            start_offset = progress.log_start_offset
            begins = f", which begins at {start_offset}" if start_offset > offset else ""
            self.raise_soon(
                OffsetOutOfRange(
                    f"{progress.name}: offset {offset} is not in the log{begins}",
                    code=ErrorCode.OFFSET_OUT_OF_RANGE,
                )
            )
        else:
            progress.lookup_ms = _RESETS[self._reset]
