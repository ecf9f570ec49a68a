"""What the leader asks of the producer state: is this batch new, a repeat, or out of order?

The state itself lives with the log (`odradek_broker.log.producers`): every replica notes the
headers of what it appends, rolls back with a truncation and rebuilds from snapshot and log, so a
new leader knows what the old one knew. Deciding what a repeat is told, and when, is ours: it waits
for the high watermark like the first (R12), because an answer before it would acknowledge a
record that may still be lost.
"""

from __future__ import annotations

from typing import Protocol

from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode


class StoredBatch(Protocol):
    """A batch already in the log; `last_offset` is inclusive, as in its header."""

    @property
    def base_offset(self) -> Offset: ...

    @property
    def last_offset(self) -> Offset: ...


class ProducerSequences(Protocol):
    """All producers of one partition, with the last five batches of each."""

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        last_sequence: int,
    ) -> StoredBatch | ErrorCode:
        """NONE: append it. A StoredBatch: a repeat of that one. Else the error to answer."""
        ...
