"""Folding batches into producer state: one at the append, or many when a log is opened or cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from odradek_broker.log.index.transaction_index import AbortedTransaction
from odradek_broker.log.producers.producer_state import (
    SEQUENCE_MODULUS,
    ProducerStates,
    StoredBatch,
)
from odradek_broker.log.segments.batch_walk import Header, walk_headers
from odradek_broker.log.segments.segment import Segment, Suffix
from odradek_broker.log.storage import Storage
from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.records.batch_header import ByteBuffer
from odradek_protocol.records.control import ControlType, read_control


def fold_batch(
    states: ProducerStates, header: Header, batch: Callable[[], ByteBuffer]
) -> AbortedTransaction | None:
    """Note a batch that has a producer id; `batch` gives its bytes, asked for markers only.

    Returns what belongs into the transaction index, if it is the marker of an abort.
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
    if header.record_count == 0:  # compaction took the marker when nothing needed it any more
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
    """One batch of a buffer of many."""
    return data[start:end]


def replay(
    storage: Storage,
    segments: Iterable[Segment],
    states: ProducerStates,
    *,
    from_offset: Offset,
    on_aborted: Callable[[Segment, AbortedTransaction], None] | None = None,
) -> None:
    """Fold all batches at or past `from_offset`, header by header (waits)."""
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
