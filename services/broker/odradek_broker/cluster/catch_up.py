"""Whether a broker that came back is whole again, so that the next one may be restarted.

It is when each of its replicas is in its partition's ISR, or has no leader to catch up with. A large log takes
its time to copy, and a rolling restart does not wait for ever: after a bound it counts as whole. From then on it
stays so: a replica that falls behind later is a matter for alerts, not a reason to take the broker from its clients.
"""

from __future__ import annotations

from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import NO_LEADER


class CatchUp:
    """One life of a broker; times in ms of one monotonic clock."""

    def __init__(self, broker_id: BrokerId, *, timeout_ms: int) -> None:
        self._broker_id = broker_id
        self._timeout_ms = timeout_ms
        self._began_at_ms: int | None = None
        self._is_over = False

    def why_not(self, image: MetadataImage, now_ms: int) -> str:
        """Empty once the broker has caught up, or had its time since the first call; else what is missing."""
        if self._is_over:
            return ""
        if self._began_at_ms is None:
            self._began_at_ms = now_ms
        behind = next(
            (
                state
                for state in image.partitions()
                if self._broker_id in state.replicas
                and self._broker_id not in state.isr
                and state.leader != NO_LEADER
            ),
            None,
        )
        if behind is not None and now_ms < self._began_at_ms + self._timeout_ms:
            return "a replica is not in sync yet"
        self._is_over = True
        return ""
