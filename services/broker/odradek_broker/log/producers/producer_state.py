"""What one partition knows of its idempotent and transactional producers (KIP-98).

Per producer id: its epoch and the last five batches, because a client has at most five requests in
flight and may repeat any of them. A batch is

    new        it continues the last sequence, begins an epoch at 0, or the producer is unknown
    a repeat   its sequences are those of a stored batch: answered with the stored offsets
    refused    an older epoch (a zombie), or any other sequence

What lies behind the stored batches is refused, too, as Kafka refuses it, and not taken for a repeat
(DUPLICATE_SEQUENCE_NUMBER, a success to clients): a client in order never asks for it, and what an
unknown producer sent first may have been its second batch, whose first one was not written.

and a transaction of it is

    ongoing        from its first transactional batch to its marker; nobody reads committed past it
    unreplicated   decided, but the marker is not below the high watermark yet
    forgotten      afterwards, except that an abort stays in the transaction index

The state is a fold over the batch headers of the log (and the markers' records), so it is rebuilt
from a snapshot and a replay, on leader and follower alike. Entries are never changed in place:
a copy of the dictionary is a consistent snapshot that a thread may write out.

Invariant: ongoing transactions stand in the order of their first offsets, because they enter as
the log grows; the first one is the first undecided offset.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from odradek_broker.log.index.transaction_index import AbortedTransaction
from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode

BATCHES_MAX: Final = 5
PRODUCERS_MAX: Final = 10_000
"""Of one partition, 450 bytes each. The one that appended longest ago is forgotten for another."""
SEQUENCE_MODULUS: Final = 1 << 31
NO_COORDINATOR_EPOCH: Final = -1
PRODUCER_IDLE_MS_MAX: Final = 24 * 60 * 60 * 1000


class StoredBatch(NamedTuple):
    """A batch already in the log, with the offsets that its producer must be told again."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp_ms: int


class ProducerEntry(NamedTuple):
    """One producer. `batches`: oldest first; `transaction_first_offset`: -1 = none is ongoing."""

    epoch: ProducerEpoch
    batches: tuple[StoredBatch, ...]
    coordinator_epoch: int
    transaction_first_offset: int
    last_timestamp_ms: int


class ProducerStates:
    """All producers of one partition, as of its log end."""

    __slots__ = ("_entries", "_heard", "_idle_since_ms", "_ongoing", "_unreplicated")

    def __init__(self) -> None:
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._ongoing: dict[ProducerId, Offset] = {}
        self._unreplicated: deque[tuple[Offset, Offset]] = deque()  # (first offset, marker)
        self._heard: set[ProducerId] = set()  # since the last `expire`
        self._idle_since_ms: dict[ProducerId, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> dict[ProducerId, ProducerEntry]:
        """A copy that later appends do not change."""
        return self._entries.copy()

    # --- judging what a client sent -------------------------------------------------------------

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        last_sequence: int,
    ) -> StoredBatch | ErrorCode:
        """Judge a client's batch before the append.

        ErrorCode.NONE: append it. A StoredBatch: a repeat, answered with these offsets once the
        high watermark passed them. Else INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER,
        and nothing may be appended.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return ErrorCode.NONE
        if producer_epoch != entry.epoch:
            if producer_epoch < entry.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            return ErrorCode.NONE if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        batches = entry.batches
        if not batches:  # a marker alone set the epoch
            return ErrorCode.NONE if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if base_sequence == (batches[-1].last_sequence + 1) % SEQUENCE_MODULUS:
            return ErrorCode.NONE
        for batch in reversed(batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    # --- the fold over the log ------------------------------------------------------------------

    def note_batch(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        batch: StoredBatch,
        *,
        is_transactional: bool,
    ) -> None:
        """A data batch entered the log. No judgement: what is in the log is true."""
        entry = self._entries.pop(producer_id, None)  # entries stand in the order of last appends
        first_offset = -1
        if entry is None:
            batches: tuple[StoredBatch, ...] = (batch,)
            coordinator_epoch = NO_COORDINATOR_EPOCH
        else:
            same = entry.epoch == epoch
            batches = (*entry.batches[1 - BATCHES_MAX :], batch) if same else (batch,)
            coordinator_epoch = entry.coordinator_epoch
            first_offset = entry.transaction_first_offset
        if is_transactional and first_offset < 0:
            first_offset = batch.base_offset
            self._ongoing[producer_id] = batch.base_offset
        self._entries[producer_id] = ProducerEntry(
            epoch, batches, coordinator_epoch, first_offset, batch.timestamp_ms
        )
        self._heard.add(producer_id)
        if len(self._entries) > PRODUCERS_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Make room for another producer; one in the middle of a transaction is kept."""
        oldest = next((p for p in self._entries if p not in self._ongoing), None)
        if oldest is not None:
            del self._entries[oldest]
            self._heard.discard(oldest)
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
        """A commit or abort marker entered the log; returns what the transaction index must keep.

        A marker without a transaction (its data is gone, or there was none) only moves epochs.
        """
        entry = self._entries.get(producer_id)
        batches = entry.batches if entry is not None and entry.epoch == epoch else ()
        if entry is not None:
            coordinator_epoch = max(coordinator_epoch, entry.coordinator_epoch)
            epoch = max(epoch, entry.epoch)
        self._entries[producer_id] = ProducerEntry(
            epoch, batches, coordinator_epoch, -1, timestamp_ms
        )
        self._heard.add(producer_id)
        first_offset = self._ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self._unreplicated.append((first_offset, offset))
        if not is_abort:
            return None
        stable = next(iter(self._ongoing.values()), Offset(offset + 1))
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    # --- transactions ---------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: Offset) -> Offset | None:
        """Where readers of committed data stop; None if nothing holds them back."""
        while self._unreplicated and self._unreplicated[0][1] < high_watermark:
            self._unreplicated.popleft()
        first = next(iter(self._ongoing.values()), None)
        for decided, _ in self._unreplicated:
            if first is None or decided < first:
                first = decided
        return first

    def ongoing(self) -> dict[ProducerId, Offset]:
        """First offset of each ongoing transaction, oldest first."""
        return self._ongoing.copy()

    # --- keeping and forgetting -----------------------------------------------------------------

    def expire(self, *, now_ms: int, idle_ms_max: int) -> int:
        """Forget producers that were idle for long (`producer.id.expiration.ms`); how many.

        Idle by our clock, from the first call that finds nothing new of a producer: timestamps of
        records will not do, since who loads last year's records would be forgotten while it writes,
        and its repeats be taken for new batches. Never in the middle of a transaction.
        """
        since_ms: dict[ProducerId, int] = {}
        gone: list[ProducerId] = []
        for producer_id, entry in self._entries.items():
            if producer_id in self._heard or entry.transaction_first_offset >= 0:
                continue
            began_ms = self._idle_since_ms.get(producer_id, now_ms)
            if now_ms - began_ms >= idle_ms_max:
                gone.append(producer_id)
            else:
                since_ms[producer_id] = began_ms
        for producer_id in gone:
            del self._entries[producer_id]
        self._idle_since_ms = since_ms
        self._heard.clear()
        return len(gone)

    @classmethod
    def from_entries(cls, entries: dict[ProducerId, ProducerEntry]) -> ProducerStates:
        """The state that a snapshot holds; what was unreplicated then is not known any more."""
        states = cls()
        states._entries = dict(entries)
        open_ones = [
            (entry.transaction_first_offset, producer_id)
            for producer_id, entry in entries.items()
            if entry.transaction_first_offset >= 0
        ]
        states._ongoing = {producer_id: Offset(first) for first, producer_id in sorted(open_ones)}
        return states
