"""Topics and partitions of the in-memory cluster, and the log of a partition: batches, offsets, producer states."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import BatchHeader, iter_headers, read_header, stamp
from odradek_protocol.records.batch_reader import decode_batch
from odradek_protocol.records.control import ControlType, encode_marker
from odradek_protocol.records.errors import CorruptBatch

_REMEMBERED_BATCHES = 5
_SEQUENCE_MODULUS = 1 << 31


@dataclass(slots=True)
class _ProducerState:
    epoch: int
    last_sequence: int = -1
    recent: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES)
    )
    """(base sequence, last sequence, base offset) of the last batches."""


@dataclass(slots=True)
class StoredBatch:
    base_offset: int
    next_offset: int
    data: bytes
    header: BatchHeader


class MemoryLog:
    """The log of one partition. All brokers of the in-memory cluster share it."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.leader_epoch_starts: list[tuple[int, int]] = []
        self.aborted: list[tuple[int, int, int]] = []
        """(producer id, first offset, last offset) of aborted transactions."""
        self._producers: dict[int, _ProducerState] = {}
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer id."""

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""
        return sum(len(batch.data) for batch in self.batches)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; without one, the log end offset."""
        return min(self._open.values(), default=self.log_end_offset)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, leader_epoch: int
    ) -> None:
        """Append the marker that ends a producer's transaction, as a leader does."""
        first_offset = self._open.pop(producer_id, None)
        marker = encode_marker(
            ControlType.COMMIT if is_commit else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=0,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        offset = self.log_end_offset
        self._store(marker, read_header(marker), leader_epoch)
        if first_offset is not None and not is_commit:
            self.aborted.append((producer_id, first_offset, offset))
        self._producers[producer_id] = _ProducerState(producer_epoch)

    def append(self, records: bytes, leader_epoch: int) -> tuple[ErrorCode, int]:
        """Append whole batches as a leader does. Return (error code, base offset of the first batch)."""
        try:
            placed = list(iter_headers(records))
            if not placed:
                return ErrorCode.CORRUPT_MESSAGE, -1
            for position, header in placed:
                decode_batch(records, position, header)
        except CorruptBatch:
            return ErrorCode.CORRUPT_MESSAGE, -1
        first_offset = -1
        for position, header in placed:
            code, base_offset = self._append_one(
                records[position : position + header.size_bytes], header, leader_epoch
            )
            if code is not ErrorCode.NONE:
                return code, -1
            first_offset = base_offset if first_offset < 0 else first_offset
        return ErrorCode.NONE, first_offset

    def read(
        self, offset: int, bytes_max: int, *, end_offset: int | None = None
    ) -> Iterator[StoredBatch]:
        """Yield batches, beginning with the one that contains `offset`. The first batch is returned even if it is
        larger than `bytes_max`.
        """
        remaining_bytes = bytes_max
        for number, batch in enumerate(self.batches[self._find(offset) :]):
            if end_offset is not None and batch.base_offset >= end_offset:
                return
            if number and len(batch.data) > remaining_bytes:
                return
            remaining_bytes -= len(batch.data)
            yield batch

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int]:
        """Return (offset, timestamp) of the first record at or after this time; (-1, -1) if there is no such record."""
        for batch in self.batches:
            if batch.header.max_timestamp_ms < timestamp_ms:
                continue
            for record in decode_batch(batch.data):
                if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                    return record.offset, record.timestamp_ms
        return -1, -1

    def offset_of_largest_timestamp(self) -> tuple[int, int]:
        """Return (offset, timestamp) of the record with the largest timestamp; (-1, -1) if the log is empty."""
        best = (-1, -1)
        for batch in self.batches:
            for record in decode_batch(batch.data):
                if record.timestamp_ms > best[1]:
                    best = (record.offset, record.timestamp_ms)
        return best

    def delete_before(self, offset: int) -> None:
        """Increase the log start offset, as DeleteRecords and retention do."""
        self.log_start_offset = max(self.log_start_offset, offset)
        while self.batches and self.batches[0].next_offset <= self.log_start_offset:
            self.batches.pop(0)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to `offset`, as an unclean leader election does. Batches are removed as a whole, so the log
        may end before `offset`.
        """
        while self.batches and self.batches[-1].next_offset > offset:
            self.batches.pop()
        self.log_end_offset = self.batches[-1].next_offset if self.batches else offset
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self._producers.clear()
        for batch in self.batches:
            self._remember(batch.header, batch.base_offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch that is not above `epoch`, its end offset) as in KIP-320; (-1, -1) if there is none."""
        result = (-1, -1)
        for index, (start_epoch, _) in enumerate(self.leader_epoch_starts):
            if start_epoch <= epoch:
                later = self.leader_epoch_starts[index + 1 :]
                result = (start_epoch, later[0][1] if later else self.log_end_offset)
        return result

    def _append_one(
        self, data: bytes, header: BatchHeader, leader_epoch: int
    ) -> tuple[ErrorCode, int]:
        if header.has_producer_id:
            code, offset = self._check_sequence(header)
            if code is not ErrorCode.NONE or offset >= 0:
                return code, offset
        base_offset = self._store(data, header, leader_epoch)
        if header.is_transactional:
            self._open.setdefault(header.producer_id, base_offset)
        if header.has_producer_id:
            self._remember(header, base_offset)
        return ErrorCode.NONE, base_offset

    def _store(self, data: bytes, header: BatchHeader, leader_epoch: int) -> int:
        base_offset = self.log_end_offset
        buffer = bytearray(data)
        stamp(buffer, 0, base_offset, leader_epoch)
        self.log_end_offset = base_offset + header.last_offset_delta + 1
        if not self.leader_epoch_starts or self.leader_epoch_starts[-1][0] < leader_epoch:
            self.leader_epoch_starts.append((leader_epoch, base_offset))
        stamped = bytes(buffer)
        self.batches.append(
            StoredBatch(base_offset, self.log_end_offset, stamped, read_header(stamped))
        )
        return base_offset

    def _check_sequence(self, header: BatchHeader) -> tuple[ErrorCode, int]:
        """Check the sequence numbers of a batch.

        Return (NONE, -1) if the batch must be appended, and (NONE, its offset) if it is a duplicate of an earlier
        batch. Like the brokers of Odradek and Kafka, this method accepts any first sequence number of an unknown
        producer.
        """
        state = self._producers.get(header.producer_id)
        if state is None:
            return ErrorCode.NONE, -1
        if header.producer_epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > state.epoch:
            fits = header.base_sequence == 0
            return (ErrorCode.NONE if fits else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
        for base_sequence, last_sequence, base_offset in state.recent:
            if (base_sequence, last_sequence) == (header.base_sequence, header.last_sequence):
                return ErrorCode.NONE, base_offset
        if header.base_sequence == (state.last_sequence + 1) % _SEQUENCE_MODULUS:
            return ErrorCode.NONE, -1
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1

    def _remember(self, header: BatchHeader, base_offset: int) -> None:
        if not header.has_producer_id or header.is_control:
            return
        state = self._producers.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._producers[header.producer_id] = _ProducerState(header.producer_epoch)
        state.last_sequence = header.last_sequence
        state.recent.append((header.base_sequence, header.last_sequence, base_offset))

    def _find(self, offset: int) -> int:
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].next_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(slots=True)
class MemoryPartition:
    """A partition: its leader, its replicas and its log."""

    leader_id: int
    replicas: list[int]
    leader_epoch: int = 0
    adding: list[int] = field(default_factory=list)
    """Replicas that a move in progress adds. The move ends when all their brokers are alive."""
    removing: list[int] = field(default_factory=list)
    log: MemoryLog = field(default_factory=MemoryLog)
    is_open: bool = True

    @property
    def is_moving(self) -> bool:
        """Whether a move of the partition is in progress."""
        return bool(self.adding or self.removing)

    def move_to(self, target: list[int]) -> None:
        """Begin a move to these brokers. An empty list cancels the move in progress."""
        present = [broker for broker in self.replicas if broker not in self.adding]
        target = target or present
        self.adding = [broker for broker in target if broker not in present]
        self.removing = [broker for broker in present if broker not in target]
        self.replicas = [*target, *self.removing]

    def end_move(self, alive: set[int]) -> None:
        """End the move if all brokers that it adds are alive. No records are copied, because all brokers share the
        log.
        """
        if not self.is_moving or not alive.issuperset(self.adding):
            return
        self.replicas = [broker for broker in self.replicas if broker not in self.removing]
        self.adding, self.removing = [], []
        if self.leader_id not in self.replicas:
            self.leader_id = next((broker for broker in self.replicas if broker in alive), -1)
            self.leader_epoch += 1


@dataclass(slots=True)
class MemoryTopic:
    """A topic. A topic that is created again with the same name has another id."""

    name: str
    topic_id: bytes
    partitions: list[MemoryPartition]
    configs: dict[str, str]
