"""Whether a restarted broker has caught up, so that a rolling restart may go on to the next broker.

A broker has caught up when each of its replicas is in its partition's ISR, or has no leader to catch up with.
Copying a large log takes long, so after a timeout the broker counts as caught up nevertheless. From then on it stays
so: a replica that falls behind later is a matter for alerts, and no reason to report the broker as not ready.
"""

from __future__ import annotations

from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import NO_LEADER


class CatchUp:
    """Decides whether one broker process has caught up. Times are ms of one monotonic clock."""

    def __init__(self, broker_id: BrokerId, *, timeout_ms: int) -> None:
        self._broker_id = broker_id
        self._timeout_ms = timeout_ms
        self._began_at_ms: int | None = None
        self._is_over = False

    def why_not(self, image: MetadataImage, now_ms: int) -> str:
        """Return why the broker has not caught up; "" once it has, or once the timeout since the first call has
        passed.
        """
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
