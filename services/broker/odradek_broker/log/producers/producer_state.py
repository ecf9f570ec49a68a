"""What one partition knows of its idempotent producers: the last five batches of each. INTERFACE."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch already in the log, with the offsets that its producer must be told again."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    timestamp_ms: int


class ProducerStates:
    """All producers of one partition."""

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        last_sequence: int,
    ) -> StoredBatch | ErrorCode:
        """Judge a client's batch before the append: ErrorCode.NONE = append it; a StoredBatch = a
        repeat, answer with it once the high watermark passed it; else INVALID_PRODUCER_EPOCH or
        OUT_OF_ORDER_SEQUENCE_NUMBER."""
        raise NotImplementedError
