"""What is fetched from where, and what has been: the consumer's core.

A partition goes through these stages:

    unpositioned   its offset must be looked up first (`lookups` says which; `position_found` answers)
    unvalidated    another leader epoch began since its last record was read: is the log still the one that
                   was read (KIP-320)? (`validations` says which; `validated`, `truncated` answer)
    ready          `plan` puts it on the stream of its leader
    fetching       `fetched` takes what comes

It falls back to ready when its leader moves, its stream breaks, or the broker answers with an error
that may pass (after a pause); to unpositioned when its offset is out of range and a reset policy says what
then. Errors that will not pass are kept in `errors`, for the next read to raise.

Two offsets are kept: `position`, the next one to hand out, and `fetch_offset`, the next one to come; what
lies between is in `chunks`. Each time a partition is put on a stream it gets a new `fetch_id`, which the
broker repeats: an answer with another id is from before a seek, a pause or a move, and is dropped.

Memory is bounded by credit: a broker may send as many bytes as it was given, over all streams that it had,
and is given back those that were read or dropped. A paused partition is taken off its stream and its chunks are
dropped, so it cannot hold credit that the others need. Sans-IO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

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
LeaderOf: TypeAlias = Callable[[TopicPartition], tuple[str, int] | None]
"""partition -> (endpoint, leader epoch), or None while it has no leader that can be reached."""

ERRORS_MAX = 100
UNKNOWN_TOPIC_MS_MAX = 10_000
_RESETS: dict[str, int] = {"earliest": EARLIEST, "latest": LATEST}


class FetchPlanner:
    """All partitions of one consumer."""

    def __init__(
        self,
        *,
        reset: ResetPolicy = "latest",
        read_committed: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self.partitions: dict[TopicPartition, PartitionProgress] = {}
        self.chunks: deque[FetchedChunk] = deque()
        self.errors: deque[OdradekError] = deque(maxlen=ERRORS_MAX)
        self.buffered_bytes = 0
        self.wants_refresh = False
        """Some news says that the metadata is stale; the shell resets it."""
        self._reset: ResetPolicy = reset
        self._read_committed = read_committed
        self._backoff = backoff or Backoff(first_ms=20, most_ms=1_000)
        self._next_fetch_id = 0
        self._changes: dict[str, StreamChange] = {}
        self._credit_due: dict[int, int] = {}

    # --- what the user says -----------------------------------------------------------------------

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """Read exactly these from now on; those that stay keep their place."""
        wanted = dict.fromkeys(names)
        for name in [n for n in self.partitions if n not in wanted]:
            self._stop(self.partitions[name])
            self._drop_chunks(name)
            del self.partitions[name]
        for name in wanted:
            if name not in self.partitions:
                self.partitions[name] = PartitionProgress(name)

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Hand out from this offset on."""
        progress = self.partitions[name]
        self._restart(progress)
        progress.position = progress.fetch_offset = offset
        progress.lookup_ms = None
        progress.is_looking_up = False  # an answer that is under way comes too late
        progress.last_epoch = progress.validated_epoch = -1

    def seek_to_timestamp(self, name: TopicPartition, timestamp_ms: int) -> None:
        """Hand out from the offset that this turns out to be (EARLIEST and LATEST, too)."""
        progress = self.partitions[name]
        self._restart(progress)
        progress.position = progress.fetch_offset = UNKNOWN
        progress.lookup_ms = timestamp_ms
        progress.is_looking_up = False
        progress.last_epoch = progress.validated_epoch = -1

    def pause(self, name: TopicPartition) -> None:
        """Hand out nothing of it until `resume`; it keeps its position."""
        progress = self.partitions[name]
        if not progress.is_paused:
            self._restart(progress)
            progress.is_paused = True

    def resume(self, name: TopicPartition) -> None:
        """Go on from its position."""
        self.partitions[name].is_paused = False

    def hold(self, name: TopicPartition) -> None:
        """As `pause`, by the group: hand out nothing of it until `release`, whatever the user resumes."""
        progress = self.partitions[name]
        self._restart(progress)
        progress.is_held = True

    def release(self, name: TopicPartition) -> None:
        """Go on from its position, unless the user has paused it."""
        self.partitions[name].is_held = False

    def raise_soon(self, error: OdradekError) -> None:
        """The next read raises it: once, however often it is said before then."""
        if all(str(waiting) != str(error) for waiting in self.errors):
            self.errors.append(error)

    # --- where to fetch ---------------------------------------------------------------------------

    def plan(self, leader_of: LeaderOf, now_ms: int) -> dict[str, StreamChange]:
        """What each stream is to be told, by endpoint, to bring fetching in line with the leaders."""
        for progress in self.partitions.values():
            target = leader_of(progress.name)
            if progress.endpoint is not None and target is not None:
                endpoint, epoch = target
                if progress.preferred_replica < 0 and (
                    endpoint != progress.endpoint or epoch > progress.fetch_epoch
                ):
                    self._stop(progress)
            if progress.endpoint is None:
                self._begin(progress, target, now_ms)
        changes, self._changes = self._changes, {}
        return changes

    def use_replica(self, name: TopicPartition, endpoint: str, leader_epoch: int) -> None:
        """Fetch from the replica that the leader recommended."""
        progress = self.partitions[name]
        self._stop(progress)
        self._add(progress, endpoint, leader_epoch)

    def lookups(self) -> dict[TopicPartition, int]:
        """Partitions whose offset must be looked up, and how; each is told once per need.

        A partition without a position and a reset policy is an error.
        """
        wanted = {}
        for progress in self.partitions.values():
            if progress.position != UNKNOWN or progress.is_looking_up:
                continue
            if progress.lookup_ms is None:
                if self._reset == "error":
                    progress.is_looking_up = True  # until the user seeks
                    self.raise_soon(
                        OffsetOutOfRange(f"{progress.name} has no position to begin at")
                    )
                    continue
                progress.lookup_ms = _RESETS[self._reset]
            progress.is_looking_up = True
            wanted[progress.name] = progress.lookup_ms
        return wanted

    def position_found(self, name: TopicPartition, lookup_ms: int, offset: int) -> None:
        """The answer to a lookup. Too late if the user has sought elsewhere meanwhile."""
        progress = self.partitions.get(name)
        if progress is None or progress.lookup_ms != lookup_ms or not progress.is_looking_up:
            return
        progress.is_looking_up = False
        progress.lookup_ms = None
        progress.position = progress.fetch_offset = offset

    def lookup_at_end(self, name: TopicPartition, lookup_ms: int) -> None:
        """The answer to a lookup was that no record is that late: the log's end, then."""
        progress = self.partitions.get(name)
        if progress is not None and progress.lookup_ms == lookup_ms:
            progress.lookup_ms = LATEST
            progress.is_looking_up = False

    def lookup_failed(self, name: TopicPartition, lookup_ms: int) -> None:
        """Try again with the next `lookups`."""
        progress = self.partitions.get(name)
        if progress is not None and progress.lookup_ms == lookup_ms:
            progress.is_looking_up = False

    def validations(self, leader_of: LeaderOf) -> dict[TopicPartition, int]:
        """Partitions to check for truncation, with the epoch to ask for; each is told once per need."""
        wanted = {}
        for progress in self.partitions.values():
            target = leader_of(progress.name)
            if target is None or progress.is_validating or not progress.needs_check(target[1]):
                continue
            progress.is_validating = True
            wanted[progress.name] = progress.last_epoch
        return wanted

    def validated(
        self, name: TopicPartition, asked_epoch: int, end_offset: int | None, leader_epoch: int
    ) -> None:
        """The answer: where the epoch of the last record ends; None: unknown, try again."""
        progress = self.partitions.get(name)
        if progress is None or not progress.is_validating:
            return
        progress.is_validating = False
        if end_offset is None or progress.last_epoch != asked_epoch:
            return
        progress.validated_epoch = leader_epoch
        if 0 <= end_offset < progress.position:
            lost = LogTruncated(
                f"{name}: the log was truncated to offset {end_offset}, records up to"
                f" {progress.position} had been read",
                truncated_to=end_offset,
            )
            self._restart(progress)
            if self._reset == "error":
                self.raise_soon(lost)
            progress.position = progress.fetch_offset = end_offset
            progress.last_epoch = -1
        elif (
            0 <= end_offset < progress.fetch_offset
        ):  # what is not yet read may have been taken back
            self._restart(progress)

    def wake_ms(self, now_ms: int) -> int | None:
        """When a pause of some partition ends; None: none is pausing."""
        times = [p.not_before_ms for p in self.partitions.values() if p.not_before_ms > now_ms]
        return min(times, default=None)

    # --- what came --------------------------------------------------------------------------------

    def fetched(self, source: int, entry: FetchedPartition, now_ms: int) -> None:
        """Take one partition's part of an answer."""
        news = entry.header
        size_bytes = len(entry.records)
        progress = self.partitions.get(TopicPartition(news.topic, news.partition))
        if progress is None or progress.fetch_id != news.fetch_id or progress.endpoint is None:
            self._give_back(source, size_bytes)
            return
        if news.error_code != ErrorCode.NONE:
            self._give_back(source, size_bytes)
            progress.log_start_offset = max(progress.log_start_offset, news.log_start_offset)
            self._refused(progress, news.error_code, news.error_message, now_ms)
            return
        progress.failures = 0
        progress.failing_since_ms = -1
        progress.high_watermark = news.high_watermark
        progress.last_stable_offset = news.last_stable_offset
        progress.log_start_offset = news.log_start_offset
        if news.end_reached:
            progress.is_end_reached = True
        if size_bytes:
            aborted = None
            if self._read_committed:
                aborted = [(a.producer_id, a.first_offset) for a in news.aborted_transactions]
            self.chunks.append(
                FetchedChunk(
                    progress.name,
                    entry.records,
                    next_offset=news.next_offset,
                    source=source,
                    aborted=aborted,
                )
            )
            self.buffered_bytes += size_bytes
            progress.buffered += 1
        progress.fetch_offset = max(progress.fetch_offset, news.next_offset)
        if not progress.buffered:  # offsets that hold no records, as after compaction
            progress.position = max(progress.position, progress.fetch_offset)

    def stream_broke(self, endpoint: str, now_ms: int) -> None:
        """Its partitions are fetched nowhere; what came of them is kept."""
        self._changes.pop(endpoint, None)
        for progress in self.partitions.values():
            if progress.endpoint == endpoint:
                progress.endpoint = None
                progress.preferred_replica = -1
                self._pause_for_a_while(progress, now_ms)

    # --- what is read -----------------------------------------------------------------------------

    def next_chunk(self) -> tuple[FetchedChunk, PartitionProgress] | None:
        """The chunk to read from, and its partition; None: nothing is buffered."""
        if not self.chunks:
            return None
        chunk = self.chunks[0]
        return chunk, self.partitions[chunk.name]

    def finish_chunk(self) -> None:
        """The first chunk is read to its end."""
        chunk = self.chunks.popleft()
        progress = self.partitions[chunk.name]
        progress.position = max(progress.position, chunk.next_offset)
        if chunk.leader_epoch >= 0:
            progress.last_epoch = chunk.leader_epoch
        self._release(chunk, progress)

    def reject_chunk(self) -> None:
        """The first chunk is damaged: fetch again from where its partition stands."""
        progress = self.partitions[self.chunks[0].name]
        self._restart(progress)

    def credit_due(self, source: int, least_bytes: int) -> int:
        """Bytes to give back to a stream; 0 while they are fewer than `least_bytes`."""
        due_bytes = self._credit_due.get(source, 0)
        if due_bytes < least_bytes:
            return 0
        del self._credit_due[source]
        return due_bytes

    def reopen_source(self, source: int) -> int:
        """A new stream is made to that broker: how many bytes of the last one's are still to be read."""
        self._credit_due.pop(source, None)
        return sum(chunk.size_bytes for chunk in self.chunks if chunk.source == source)

    # --- inside -----------------------------------------------------------------------------------

    def _begin(
        self, progress: PartitionProgress, target: tuple[str, int] | None, now_ms: int
    ) -> None:
        if (
            target is None
            or progress.position == UNKNOWN
            or progress.is_paused
            or progress.is_held
            or progress.is_validating
            or progress.not_before_ms > now_ms
            or (progress.must_drain and progress.buffered)
            or progress.needs_check(target[1])
        ):
            return
        progress.must_drain = False
        self._add(progress, *target)

    def _add(self, progress: PartitionProgress, endpoint: str, leader_epoch: int) -> None:
        self._next_fetch_id += 1
        progress.fetch_id = self._next_fetch_id
        progress.endpoint = endpoint
        progress.fetch_epoch = leader_epoch
        change = self._changes.setdefault(endpoint, StreamChange())
        change.remove.discard(progress.name)
        change.add[progress.name] = FetchAdd(
            progress.name, progress.fetch_offset, leader_epoch, progress.fetch_id
        )

    def _stop(self, progress: PartitionProgress) -> None:
        """Take it off its stream; what came of it is kept."""
        if progress.endpoint is not None:
            change = self._changes.setdefault(progress.endpoint, StreamChange())
            change.add.pop(progress.name, None)
            change.remove.add(progress.name)
            progress.endpoint = None
            progress.preferred_replica = -1

    def _restart(self, progress: PartitionProgress) -> None:
        """Take it off its stream, drop what came of it, and stand at its position."""
        self._stop(progress)
        self._drop_chunks(progress.name)
        progress.fetch_offset = progress.position
        progress.must_drain = False
        progress.is_end_reached = False
        progress.is_validating = False
        progress.not_before_ms = 0

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
        progress.not_before_ms = now_ms + self._backoff.after(min(progress.failures, 8), 0.0)

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
            progress.not_before_ms = now_ms + 1_000
            return
        self.wants_refresh = True
        if (
            error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            and now_ms - progress.failing_since_ms > UNKNOWN_TOPIC_MS_MAX
        ):
            progress.failing_since_ms = now_ms
            self.raise_soon(error)

    def _out_of_range(self, progress: PartitionProgress) -> None:
        if progress.buffered:  # what came is good: hand it out first, then ask again
            progress.must_drain = True
            return
        offset = progress.position
        progress.not_before_ms = 0
        progress.position = progress.fetch_offset = UNKNOWN
        progress.last_epoch = -1
        if self._reset == "error":
            progress.is_looking_up = True  # until the user seeks
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
