"""What a follower has yet to be sent."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_protocol.identity import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class DataDue:
    """Send batches from `from_offset` up to `log_end` (as many as fit), or none of them when the
    two are equal: then only the high watermark or the log start is news, which may wait 50 ms for
    company. `high_watermark` and `log_start` go with every Data: read them, by asking again, when
    the message is built, not when its bytes were ordered from the disk."""

    from_offset: Offset
    log_end: Offset
    high_watermark: Offset
    log_start: Offset
    leader_epoch: LeaderEpoch
