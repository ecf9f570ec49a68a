"""Combines the records of all steps of one iteration of the event loop into one append, in the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias

from odradek_broker.compiled import Mutable
from odradek_broker.coordinator_step import Step, TransactionalRecords, TransactionMarker
from odradek_protocol.identity import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from odradek_protocol.records import BatchBuilder, ControlType, encode_marker

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
_NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
# An upper bound for the encoded size of a record's lengths, attributes and deltas.
_RECORD_OVERHEAD_BYTES: Final = 32
EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


class _Run(Mutable):
    """Consecutive records with the same producer id and epoch, which become one batch."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    records: list[EncodedRecord | None]
    size_bytes: int = 0


class TurnWrites:
    """Collects the records of steps, and builds the batches of one append from them.

    Records are encoded when their step is added, so that a record that cannot be encoded fails only its own request. If
    several records of a batch have the same state key, only the last one is written. This is safe because a load
    replays either the whole batch or nothing of it.
    """

    __slots__ = ("_encode", "_pieces", "_state_key", "_states")

    def __init__(
        self,
        encode: Callable[[Any], EncodedRecord],
        state_key: Callable[[Any], Hashable | None],
    ) -> None:
        self._encode = encode
        self._state_key = state_key
        self._pieces: list[_Run | TransactionMarker] = []
        self._states: dict[
            Hashable, int
        ] = {}  # the index of the record with each state key in the last run

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, step: Step[Any]) -> None:
        """Add the records, the transactional records and the markers of a step.

        Raises:
            Exception: a record cannot be encoded. `build` must not be called after that.
        """
        if step.records:
            self._add_plain(step.records)
        for write in step.writes:
            match write:
                case TransactionalRecords(producer_id, producer_epoch, records):
                    assert records, f"{write} has no records"
                    encoded = [self._encode(record) for record in records]
                    run = self._run(producer_id, producer_epoch, _size_bytes(encoded))
                    run.records += encoded
                case TransactionMarker():
                    self._pieces.append(write)

    def _add_plain(self, records: tuple[Any, ...]) -> None:
        encoded = [self._encode(record) for record in records]
        run = self._run(NO_PRODUCER_ID, _NO_PRODUCER_EPOCH, _size_bytes(encoded))
        for record, key_and_value in zip(records, encoded, strict=True):
            key = self._state_key(record)
            if key is not None:
                replaced = self._states.get(key)
                if replaced is not None:
                    run.records[replaced] = None
                self._states[key] = len(run.records)
            run.records.append(key_and_value)

    def _run(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, more_bytes: int) -> _Run:
        """Return the last run if it has this producer id and epoch and can grow by `more_bytes`; otherwise begin a new
        run and return it.
        """
        last = self._pieces[-1] if self._pieces else None
        if (
            not isinstance(last, _Run)
            or (last.producer_id, last.producer_epoch) != (producer_id, producer_epoch)
            or last.size_bytes + more_bytes > BATCH_BYTES_MAX
        ):
            last = _Run(producer_id, producer_epoch, [])
            self._pieces.append(last)
            self._states.clear()
        last.size_bytes += more_bytes
        return last

    def build(self, now_wall_ms: int) -> bytearray:
        """Return the batches in order."""
        buffer = bytearray()
        for piece in self._pieces:
            if isinstance(piece, TransactionMarker):
                buffer += encode_marker(
                    ControlType.COMMIT if piece.is_commit else ControlType.ABORT,
                    producer_id=piece.producer_id,
                    producer_epoch=piece.producer_epoch,
                    coordinator_epoch=piece.coordinator_epoch,
                    timestamp_ms=now_wall_ms,
                )
            else:
                _build_run(piece, now_wall_ms, buffer)
        return buffer


def _size_bytes(records: list[EncodedRecord]) -> int:
    return sum([len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in records])


def _build_run(run: _Run, now_wall_ms: int, buffer: bytearray) -> None:
    """Append the batches of a run to `buffer`. A run has several batches if one step is larger than `BATCH_BYTES_MAX`.

    Only a step that expires offsets can be that large, because it writes a tombstone for each offset.
    """
    batch = BatchBuilder(BATCH_BYTES_MAX)
    for record in run.records:
        if record is None:
            continue
        key, value = record
        if not batch.append(key, value, None, now_wall_ms):
            buffer += _built(run, batch)
            batch = BatchBuilder(BATCH_BYTES_MAX)
            batch.append(key, value, None, now_wall_ms)
    buffer += _built(run, batch)


def _built(run: _Run, batch: BatchBuilder) -> bytes:
    return batch.build(
        producer_id=run.producer_id,
        producer_epoch=run.producer_epoch,
        transactional=run.producer_id != NO_PRODUCER_ID,
    )
