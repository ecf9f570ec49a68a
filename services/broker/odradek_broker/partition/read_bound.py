"""What a consumer may read of one replica, and where an offset lies in that (R14, R15)."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import LeaderEpoch, Offset
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class ReadBound:
    """What a consumer may read here: [start_offset, end_offset), unless `error_code` is set.

    The answer passes the gate in `leader_epoch`. A fetch at `end_offset` waits or gets nothing.
    """

    error_code: ErrorCode
    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch


def refusal_of_offset(log: LogPositions, fetch_offset: Offset, *, is_leader: bool) -> ErrorCode:
    """NONE if reading may begin there. A leader knows where the log ends, and gives nothing above
    its watermark; a follower cannot tell what lies above its own."""
    if fetch_offset < log.log_start:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if is_leader:
        is_inside = fetch_offset <= log.log_end
        return ErrorCode.NONE if is_inside else ErrorCode.OFFSET_OUT_OF_RANGE
    is_shown = fetch_offset <= log.high_watermark
    return ErrorCode.NONE if is_shown else ErrorCode.OFFSET_NOT_AVAILABLE
