"""The state of one partition's idempotent and transactional producers (KIP-98).

For each producer id the state has the epoch and the last five batches, because a client has at most five requests in
flight and may retry any of them. A batch is

    new         it continues the last sequence, begins an epoch at 0, or the producer is unknown
    duplicate   its sequences are those of a stored batch: the response has the offsets of the stored batch
    refused     it has an older epoch (a zombie), or any other sequence

A batch older than the stored batches is refused, too, as in Kafka. It is not treated as a duplicate
(DUPLICATE_SEQUENCE_NUMBER, which clients treat as success): a correct client never sends one, and the first stored
batch of a producer may have been its second batch, while the first one was not written.

A transaction of a producer is

    ongoing        from its first transactional batch to its marker; read_committed readers stop before that batch
    unreplicated   its marker is appended, but not below the high watermark yet
    deleted        afterwards, except that an abort stays in the transaction index

The state follows only from the batch headers of the log and the records of markers, so leaders and followers build the
same state from a snapshot and a replay. Entries are never changed in place: a copy of the dictionary is a consistent
snapshot that a thread may write to disk.

Invariant: ongoing transactions are in the order of their first offsets, because they are added as the log grows; the
first one therefore begins at the lowest undecided offset.

A snapshot `<offset>.snapshot` has the producers at the time when `<offset>` was the log end offset:

    int16   version, 1
    uint32  CRC32C of everything that follows
    int32   number of producers, and for each:
            int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
            int64 timestamp, int32 coordinator epoch, int64 first offset of its transaction or -1

Kafka's format has one batch of each producer. After a restart a client may retry one of the four batches before that
one, and Kafka can only refuse it with an error. So the other batches follow at the end, where Kafka's reader ignores
them (the CRC covers them, too):

    4 bytes "ODRK", int32 number of batches, and for each:
            int64 id, int32 base sequence, int32 last sequence, int64 base offset,
            int64 last offset, int64 timestamp

Source: Kafka's ProducerSnapshot.json and ProducerStateManager.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import ByteBuffer
from odradek_protocol.records.control import ControlType, read_control
from odradek_protocol.records.hashes import crc32c

BATCHES_MAX: Final = 5
PRODUCERS_MAX: Final = 10_000
"""The maximum number of producers of one partition; each takes 450 bytes. If there are more, the one whose last append
is the oldest is deleted, among those without an open transaction.
"""
SEQUENCE_MODULUS: Final = 1 << 31
NO_COORDINATOR_EPOCH: Final = -1


class StoredBatch(NamedTuple):
    """A batch in the log, with the offsets for the response to a duplicate of the batch."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp_ms: int


class ProducerEntry(NamedTuple):
    """The state of one producer. `batches` are its last batches, oldest first. `transaction_first_offset` is -1 if the
    producer has no open transaction.
    """

    epoch: ProducerEpoch
    batches: tuple[StoredBatch, ...]
    coordinator_epoch: int
    transaction_first_offset: int
    last_timestamp_ms: int


class EndedTransaction(NamedTuple):
    """The last transaction of a producer that a marker ended in this partition. `data_epoch` is the producer epoch of
    the transaction's batches, `marker_epoch` that of the marker.
    """

    data_epoch: ProducerEpoch
    marker_epoch: ProducerEpoch
    is_commit: bool
    is_by_leader: bool  # whether the leader wrote the marker by itself, without a coordinator
    first_offset: Offset
    marker_offset: Offset


class ProducerStates:
    """The state of all producers of one partition, as of its log end."""

    __slots__ = ("_ended", "_entries", "_idle_since_ms", "_ongoing", "_unreplicated")

    def __init__(self) -> None:
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._ongoing: dict[ProducerId, Offset] = {}
        # Pairs of a transaction's first offset and the offset of its marker.
        self._unreplicated: list[tuple[Offset, Offset]] = []
        # The time from which each producer has been idle, as of the last `expire`; None if the producer has appended
        # since that call.
        self._idle_since_ms: dict[ProducerId, int | None] = {}
        # How the last transaction of each producer with an entry ended. This is kept only in memory, and only to detect
        # a coordinator that decides one transaction in two ways.
        self._ended: dict[ProducerId, EndedTransaction] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def become(self, other: ProducerStates) -> None:
        """Replace this state by that of `other`, which must not be used afterwards."""
        self._entries = other._entries
        self._ongoing = other._ongoing
        self._unreplicated = other._unreplicated
        self._idle_since_ms = other._idle_since_ms
        self._ended = other._ended

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> dict[ProducerId, ProducerEntry]:
        """Return a copy of the entries, which later appends do not change."""
        return self._entries.copy()

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        last_sequence: int,
        is_transactional: bool = False,
    ) -> StoredBatch | ErrorCode:
        """Check a client's batch before it is appended.

        ErrorCode.NONE: the batch may be appended. A StoredBatch: the batch is a duplicate of it, and the response has
        the offsets of the stored batch, once the high watermark has passed them. Any other error refuses the batch:
        INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or INVALID_TXN_STATE for a batch outside of its producer's
        open transaction.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return ErrorCode.NONE
        if entry.transaction_first_offset >= 0 and not is_transactional:
            is_old = producer_epoch < entry.epoch
            return ErrorCode.INVALID_PRODUCER_EPOCH if is_old else ErrorCode.INVALID_TXN_STATE
        if producer_epoch != entry.epoch:
            if producer_epoch < entry.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            return ErrorCode.NONE if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        batches = entry.batches
        if not batches:  # the epoch comes from a marker, and no batch has this epoch yet
            return ErrorCode.NONE if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if base_sequence == (batches[-1].last_sequence + 1) % SEQUENCE_MODULUS:
            return ErrorCode.NONE
        for batch in reversed(batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def note_batch(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        batch: StoredBatch,
        *,
        is_transactional: bool,
    ) -> None:
        """Record a data batch that was appended. Its sequences are not checked, because the batch is in the log
        already.
        """
        # Entries are in the order of their last appends, so the entry is removed here and added at the end.
        entry = self._entries.pop(producer_id, None)
        first_offset = -1
        if entry is None:
            batches: tuple[StoredBatch, ...] = (batch,)
            coordinator_epoch = NO_COORDINATOR_EPOCH
        else:
            is_same_epoch = entry.epoch == epoch
            batches = (*entry.batches[1 - BATCHES_MAX :], batch) if is_same_epoch else (batch,)
            coordinator_epoch = entry.coordinator_epoch
            first_offset = entry.transaction_first_offset
        if is_transactional and first_offset < 0:
            first_offset = batch.base_offset
            self._ongoing[producer_id] = batch.base_offset
        self._entries[producer_id] = ProducerEntry(
            epoch, batches, coordinator_epoch, first_offset, batch.timestamp_ms
        )
        self._idle_since_ms[producer_id] = None
        if len(self._entries) > PRODUCERS_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Delete the producer whose last append is the oldest, among those without an open transaction."""
        oldest = next((p for p in self._entries if p not in self._ongoing), None)
        if oldest is not None:
            del self._entries[oldest]
            self._ended.pop(oldest, None)
            self._idle_since_ms.pop(oldest, None)

    def note_marker(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        *,
        coordinator_epoch: int,
        is_abort: bool,
        offset: Offset,
        timestamp_ms: int,
    ) -> AbortedTransaction | None:
        """Record a commit or abort marker that was appended. Return the entry for the transaction index if the marker
        aborts a transaction, else None.

        A marker without a transaction (the transaction's batches were deleted, or there were none) only changes epochs.
        """
        entry = self._entries.get(producer_id)
        batches = entry.batches if entry is not None and entry.epoch == epoch else ()
        if entry is not None and entry.transaction_first_offset >= 0:
            self._ended[producer_id] = EndedTransaction(
                entry.epoch,
                epoch,
                not is_abort,
                coordinator_epoch == NO_COORDINATOR_EPOCH,
                Offset(entry.transaction_first_offset),
                offset,
            )
        if entry is not None:
            coordinator_epoch = max(coordinator_epoch, entry.coordinator_epoch)
            epoch = max(epoch, entry.epoch)
        self._entries[producer_id] = ProducerEntry(
            epoch, batches, coordinator_epoch, -1, timestamp_ms
        )
        self._idle_since_ms[producer_id] = None
        first_offset = self._ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self._unreplicated.append((first_offset, offset))
        if not is_abort:
            return None
        stable = next(iter(self._ongoing.values()), Offset(offset + 1))
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """Return the offset at which read_committed readers must stop; None if no transaction limits them."""
        unreplicated = self._unreplicated
        if unreplicated and unreplicated[0][1] < high_watermark:
            count = next(
                (n for n, (_, marker) in enumerate(unreplicated) if marker >= high_watermark),
                len(unreplicated),
            )
            del unreplicated[:count]
        first = next(iter(self._ongoing.values()), None)
        for decided, _ in unreplicated:
            if first is None or decided < first:
                first = decided
        return first

    def ended(self, producer_id: ProducerId) -> EndedTransaction | None:
        """Return the producer's last transaction that a marker has ended since this state was restored; None if there
        is none.
        """
        return self._ended.get(producer_id)

    @property
    def may_hold_back(self) -> bool:
        """Whether an open transaction, or one whose marker is unreplicated, may keep the last stable offset below the
        high watermark.
        """
        return bool(self._ongoing or self._unreplicated)

    def ongoing(self) -> dict[ProducerId, Offset]:
        """Return the first offset of each ongoing transaction, oldest first."""
        return self._ongoing.copy()

    def expire(self, *, now_ms: int, idle_ms_max: int) -> int:
        """Delete producers that have been idle for `idle_ms_max` (`producer.id.expiration.ms`); return their number.

        A producer's idle time begins with the first call that finds no new append of the producer. `now_ms` is read
        from a monotonic clock. Kafka compares the wall clock with the timestamps of a producer's records instead. By
        that rule, a wall clock that is set forward, or a producer that loads last year's records, would expire live
        producers, and their retries would be appended twice. A producer with an open transaction is never deleted.
        """
        since_ms: dict[ProducerId, int | None] = {}
        expired: list[ProducerId] = []
        for producer_id, entry in self._entries.items():
            began_ms = self._idle_since_ms.get(producer_id, now_ms)
            if began_ms is None or entry.transaction_first_offset >= 0:
                continue
            if now_ms - began_ms >= idle_ms_max:
                expired.append(producer_id)
            else:
                since_ms[producer_id] = began_ms
        for producer_id in expired:
            del self._entries[producer_id]
            self._ended.pop(producer_id, None)
        self._idle_since_ms = since_ms
        return len(expired)

    @classmethod
    def from_entries(cls, entries: dict[ProducerId, ProducerEntry]) -> ProducerStates:
        """Restore the state from the entries of a snapshot, which does not contain the unreplicated transactions."""
        states = cls()
        states._entries = dict(entries)
        ongoing = [
            (entry.transaction_first_offset, producer_id)
            for producer_id, entry in entries.items()
            if entry.transaction_first_offset >= 0
        ]
        states._ongoing = {producer_id: Offset(first) for first, producer_id in sorted(ongoing)}
        return states


_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")
_OLDER_HEAD: Final = struct.Struct(">4si")
_OLDER: Final = struct.Struct(">qiiqqq")
_OLDER_MAGIC: Final = b"ODRK"
_VERSION: Final = 1


class CorruptSnapshot(ValueError):
    """The bytes are not a valid snapshot. The remedy is an older snapshot, or a replay from the log's start."""


def encode_snapshot(entries: dict[ProducerId, ProducerEntry]) -> bytes:
    """Return the content of a snapshot file. The dictionary must not change during the call."""
    parts = [_COUNT.pack(len(entries))]
    older: list[bytes] = []
    for producer_id, entry in entries.items():
        last_sequence, last_offset, delta = -1, -1, 0
        if entry.batches:
            last = entry.batches[-1]
            last_sequence, last_offset = last.last_sequence, last.last_offset
            delta = last.last_offset - last.base_offset
        parts.append(
            _PRODUCER.pack(
                producer_id,
                entry.epoch,
                last_sequence,
                last_offset,
                delta,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        older += [_OLDER.pack(producer_id, *batch) for batch in entry.batches[:-1]]
    if older:
        parts.append(_OLDER_HEAD.pack(_OLDER_MAGIC, len(older)))
        parts += older
    body = b"".join(parts)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> dict[ProducerId, ProducerEntry]:
    """Decode a snapshot file. Raises CorruptSnapshot if it is torn or damaged."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"the file is too short: {len(data)} bytes")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"the version {version} is unknown")
    if crc32c(data[_HEAD.size :]) != crc:
        raise CorruptSnapshot("the CRC does not match the content")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    position = _HEAD.size + _COUNT.size
    end = position + count * _PRODUCER.size
    if count < 0 or end > len(data):
        raise CorruptSnapshot(f"{count} producers do not fit into {len(data)} bytes")
    older = _decode_older(data, end)
    entries: dict[ProducerId, ProducerEntry] = {}
    for fields in _PRODUCER.iter_unpack(data[position:end]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, first = (
            fields
        )
        batches: tuple[StoredBatch, ...] = ()
        if last_offset >= 0:
            base_sequence = (last_sequence - delta) % SEQUENCE_MODULUS
            base_offset = Offset(last_offset - delta)
            last = StoredBatch(
                base_sequence, last_sequence, base_offset, Offset(last_offset), timestamp_ms
            )
            batches = (*older.get(producer_id, ())[1 - BATCHES_MAX :], last)
        entries[ProducerId(producer_id)] = ProducerEntry(
            ProducerEpoch(epoch), batches, coordinator, first, timestamp_ms
        )
    return entries


def _decode_older(data: bytes, position: int) -> dict[int, tuple[StoredBatch, ...]]:
    if position == len(data):
        return {}
    if len(data) - position < _OLDER_HEAD.size:
        raise CorruptSnapshot(f"{len(data) - position} unexpected bytes follow the producers")
    magic, count = _OLDER_HEAD.unpack_from(data, position)
    start = position + _OLDER_HEAD.size
    if magic != _OLDER_MAGIC or len(data) - start != count * _OLDER.size:
        raise CorruptSnapshot("unknown bytes follow the producers")
    older: dict[int, tuple[StoredBatch, ...]] = {}
    for producer_id, *batch in _OLDER.iter_unpack(data[start:]):
        older[producer_id] = (*older.get(producer_id, ()), StoredBatch(*batch))
    return older


def fold_batch(
    states: ProducerStates, header: Header, batch: Callable[[], ByteBuffer]
) -> AbortedTransaction | None:
    """Apply a batch with a producer id to the state. `batch` returns the bytes of the batch, and is called for markers
    only.

    Return the entry for the transaction index if the batch is an abort marker of a transaction, else None.
    """
    producer_id = ProducerId(header.producer_id)
    epoch = ProducerEpoch(header.producer_epoch)
    if not header.is_control:
        first = header.base_sequence
        last = (first + header.last_offset_delta) % SEQUENCE_MODULUS if first >= 0 else first
        stored = StoredBatch(
            first,
            last,
            Offset(header.base_offset),
            Offset(header.last_offset),
            header.max_timestamp_ms,
        )
        states.note_batch(producer_id, epoch, stored, is_transactional=header.is_transactional)
        return None
    if header.record_count == 0:  # compaction has removed the marker's record
        return None
    control = read_control(batch(), check_crc=False)
    if control.type not in (ControlType.COMMIT, ControlType.ABORT):
        return None
    return states.note_marker(
        producer_id,
        epoch,
        coordinator_epoch=control.coordinator_epoch,
        is_abort=control.type is ControlType.ABORT,
        offset=Offset(header.last_offset),
        timestamp_ms=header.max_timestamp_ms,
    )


def part(data: ByteBuffer, start: int, end: int) -> ByteBuffer:
    """Return one batch from a buffer with several batches."""
    return data[start:end]


def replay(
    storage: Storage,
    segments: Iterable[Segment],
    states: ProducerStates,
    *,
    from_offset: Offset,
    on_aborted: Callable[[Segment, AbortedTransaction], None] | None = None,
) -> None:
    """Apply all batches at or past `from_offset` to the state, header by header (blocks)."""
    for segment in segments:
        if segment.end_offset <= from_offset or segment.size_bytes == 0:
            continue
        file = storage.open(segment.path(Suffix.LOG))
        try:
            start, _ = segment.locate(file, from_offset, segment.size_bytes)
            for position, header in walk_headers(file, start, segment.size_bytes):
                if header.producer_id < 0 or header.base_offset < from_offset:
                    continue
                read = partial(file.pread, header.size_bytes, position)
                aborted = fold_batch(states, header, read)
                if aborted is not None and on_aborted is not None:
                    on_aborted(segment, aborted)
        finally:
            file.close()
