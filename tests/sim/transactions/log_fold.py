"""Computes the transactions in a log from its batches, without code of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from odradek_broker.log.partition_log import PartitionLog
from odradek_protocol.identity import Offset
from odradek_protocol.records import (
    BatchHeader,
    ControlType,
    decode_batch,
    iter_headers,
    read_control,
)


@dataclass(slots=True)
class Fold:
    """The transactions of one replica's log, as computed from all batches of the log."""

    committed: dict[int, int] = field(default_factory=dict)  # offset -> value
    everything: dict[int, int] = field(default_factory=dict)
    # (producer id, first offset, offset of the marker).
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    stable_offset: int = 0
    violations: list[str] = field(default_factory=list)


def batches(log: PartitionLog, start: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield each batch of a range of offsets: the buffer, the position of the batch in the buffer, and the header."""
    at = start
    while at < end:
        result = log.read(Offset(at), bytes_max=1 << 20, end_offset=Offset(end))
        for part in result.slices:
            data = bytes(part)
            for position, header in iter_headers(data):
                if at <= header.base_offset < end:
                    yield data, position, header
        if result.end_offset <= at:
            return
        at = result.end_offset


def values_of(data: bytes, position: int, header: BatchHeader) -> tuple[tuple[int, int], ...]:
    """Return (offset, value) of the records of a batch of data."""
    return _values(data[position : position + header.size_bytes])


# Cached, because each replica has the same batches, and each batch is read many times.
@lru_cache(maxsize=8_192)
def _values(batch: bytes) -> tuple[tuple[int, int], ...]:
    return tuple((record.offset, int(bytes(record.value or b""))) for record in decode_batch(batch))


@lru_cache(maxsize=8_192)
def _is_commit(batch: bytes) -> bool:
    return read_control(batch).type is ControlType.COMMIT


def fold(log: PartitionLog) -> Fold:
    """Compute the transactions from all batches of a log."""
    folded = Fold()
    values: dict[int, dict[int, int]] = {}
    firsts: dict[int, int] = {}
    epochs: dict[int, int] = {}
    unstable = [log.high_watermark]
    for data, at, header in batches(log, log.log_start_offset, log.log_end_offset):
        producer, epoch = header.producer_id, header.producer_epoch
        if not header.is_control:
            if epoch < epochs.get(producer, -1):
                folded.violations.append(
                    f"T6: epoch {epoch} of producer {producer} at {header.base_offset} of"
                    f" {log} follows a marker of epoch {epochs[producer]}"
                )
            firsts.setdefault(producer, header.base_offset)
            written = values_of(data, at, header)
            values.setdefault(producer, {}).update(written)
            folded.everything.update(written)
            continue
        epochs[producer] = max(epochs.get(producer, -1), epoch)
        if producer not in firsts:
            continue
        first, decided = firsts.pop(producer), values.pop(producer)
        if header.base_offset >= log.high_watermark:
            unstable.append(Offset(first))
        if _is_commit(data[at : at + header.size_bytes]):
            folded.committed.update(decided)
        else:
            folded.aborted.append((producer, first, header.last_offset))
    folded.stable_offset = max(log.log_start_offset, min([*unstable, *firsts.values()]))
    return folded


def differences(log: PartitionLog) -> list[str]:
    """Return the differences between the broker's view of a log (its last stable offset, aborted transactions and
    producers) and the content of its batches: the invariants T6, T7 and T12.
    """
    folded = fold(log)
    wrong = folded.violations
    stable = log.last_stable_offset
    if stable != folded.stable_offset:
        wrong.append(
            f"T7: the last stable offset of {log} is {stable}, but {folded.stable_offset} by its batches"
        )
    if not log.log_start_offset <= stable <= log.high_watermark:
        wrong.append(f"T7: {log.log_start_offset} <= {stable} <= {log.high_watermark} of {log}")
    index = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    ]
    if index != folded.aborted:
        wrong.append(
            f"T12: the index of {log} has {index}, but by its batches it should have {folded.aborted}"
        )
    return wrong
