"""Reads a partition of an internal topic and replays its records and transaction markers into a new state machine.

Markers are replayed because a transaction's marker commits the offsets that the transaction wrote before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from odradek_broker.coordinator_step import LoadedMarker, LoadedRecord
from odradek_broker.replication.outcomes import OFFSET_EARLIEST, OFFSET_LATEST, ReadOutcome
from odradek_broker.replication.partition import Partition
from odradek_protocol.identity import Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records import ControlType, decode_batch, iter_headers, read_control

_READ_BYTES: Final = 1024 * 1024
_RECORDS_A_TURN: Final = 500
_TURN_S: Final = 0.005
_RECORDS_A_CHECK: Final = 50


async def load_partition(
    partition: Partition,
    *,
    replay: Callable[[LoadedRecord | LoadedMarker], None],
    is_wanted: Callable[[], bool],
) -> bool:
    """Replay the whole partition, and return True. Return False if the partition cannot be read now, or if `is_wanted`
    returned False in the meantime.

    The result is also False while the high watermark is below the log end, because uncommitted records of earlier
    leaders, or of a failed shard on this broker, may still become committed.
    """
    loop = asyncio.get_running_loop()
    log_end = partition.log_end
    ends = await partition.offset_at(OFFSET_LATEST)
    starts = await partition.offset_at(OFFSET_EARLIEST)
    if ends.error is not ErrorCode.NONE or starts.error is not ErrorCode.NONE:
        # The high watermark is still below the start of the leader epoch, or this broker no longer leads the partition.
        return False
    if ends.offset < log_end:
        return False
    offset, end = starts.offset, ends.offset
    while offset < end:
        if not is_wanted():
            return False
        # If the log is damaged, this replica goes offline, and a broker with an undamaged replica loads the shard.
        reading = partition.read(offset, bytes_max=_READ_BYTES, read_committed=False, verify=True)
        read = reading if isinstance(reading, ReadOutcome) else await reading
        if read.error is not ErrorCode.NONE or read.next_offset <= offset:
            return False
        for buffer in read.records:
            records_in_turn, turn_began_s = 0, loop.time()
            for loaded in _records_and_markers(buffer, offset):
                replay(loaded)
                records_in_turn += 1
                # The time is measured, because some records, and batches of one record, take ten times as long as
                # others.
                is_late = (
                    records_in_turn % _RECORDS_A_CHECK == 0
                    and loop.time() - turn_began_s >= _TURN_S
                )
                if is_late or records_in_turn >= _RECORDS_A_TURN:
                    await asyncio.sleep(0)
                    records_in_turn, turn_began_s = 0, loop.time()
            # Let other tasks run between two buffers.
            await asyncio.sleep(0)
        offset = Offset(read.next_offset)
    return True


def _records_and_markers(
    buffer: bytes | memoryview, start_offset: Offset
) -> Iterator[LoadedRecord | LoadedMarker]:
    for position, header in iter_headers(buffer):
        producer_id, producer_epoch = header.producer_id, header.producer_epoch
        if header.next_offset <= start_offset:
            continue
        if header.is_control:
            control = read_control(buffer, position)
            if control.type in (ControlType.COMMIT, ControlType.ABORT):
                yield LoadedMarker(
                    producer_id,
                    producer_epoch,
                    control.type is ControlType.COMMIT,
                    control.coordinator_epoch,
                    header.base_offset,
                )
            continue
        is_transactional = header.is_transactional
        # `partition.read` has already checked the CRCs of bytes that came from the disk.
        for record in decode_batch(buffer, position, header, check_crc=False):
            if record.offset >= start_offset and record.key is not None:
                yield LoadedRecord(
                    record.key,
                    record.value,
                    Offset(record.offset),
                    producer_id,
                    producer_epoch,
                    is_transactional,
                )
