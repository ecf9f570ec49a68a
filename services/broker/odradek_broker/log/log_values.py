"""What goes into a log when it is opened, and what an append gives back."""

from __future__ import annotations

from typing import NamedTuple

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.producers.producer_state import ProducerStates
from odradek_broker.log.segments.segment import Segment
from odradek_protocol.identity import Offset


class AppendInfo(NamedTuple):
    """What one append did; `end_offset` is the log end offset after it."""

    base_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    size_bytes: int


class LoadedLog(NamedTuple):
    """What opening a partition's directory found: how a `PartitionLog` begins."""

    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshot_offsets: list[Offset]
    log_start_offset: Offset
    high_watermark: Offset
    recovery_point: Offset
    recovery_position: int  # in the last segment
