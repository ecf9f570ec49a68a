"""Whether a restarted broker has caught up, so that a rolling restart may continue with the next broker.

A broker has caught up when both conditions are true:

- Each of its replicas is in its partition's ISR, or the partition has no leader.
- Each live broker that shares a partition with this broker has opened a replication stream to this broker. Followers
  open these streams before the broker leads any partition (`FollowerLinks.share`). Without this condition a broker
  could count as caught up although no other broker can reach it, for example because their name servers still return
  its old address. If the next broker then stopped, this broker could become a leader without followers, and acks=all
  would fail.

Copying a large log takes long, so after a timeout the broker counts as caught up nevertheless. Once the broker counts
as caught up, it does so until the process ends: a replica that falls behind later causes alerts, but is no reason to
report the broker as not ready.
"""

from __future__ import annotations

from collections.abc import Container

from odradek_protocol.identity import BrokerId
from odradek_protocol.metadata.features import (
    METADATA_VERSION,
    METADATA_VERSION_WITH_HOSTS,
    highest_supported,
)
from odradek_protocol.metadata.image import BrokerState, MetadataImage
from odradek_protocol.metadata.records import NO_LEADER


class CatchUp:
    """Decides whether a broker process has caught up. Times are ms of one monotonic clock."""

    def __init__(self, broker_id: BrokerId, *, timeout_ms: int) -> None:
        self._broker_id = broker_id
        self._timeout_ms = timeout_ms
        self._began_at_ms: int | None = None
        self._is_over = False

    def why_not(self, image: MetadataImage, connected: Container[BrokerId], now_ms: int) -> str:
        """Return the reason why the broker has not caught up. Return "" once the broker has caught up, or once the
        timeout since the first call has passed, and in all later calls.

        `connected` are the brokers that have a replication stream to this one.
        """
        if self._is_over:
            return ""
        if self._began_at_ms is None:
            self._began_at_ms = now_ms
        reason = self._why_behind(image, connected)
        if reason and now_ms < self._began_at_ms + self._timeout_ms:
            return reason
        self._is_over = True
        return ""

    def _why_behind(self, image: MetadataImage, connected: Container[BrokerId]) -> str:
        peers: set[BrokerId] = set()
        for state in image.partitions():
            if self._broker_id not in state.replicas:
                continue
            if self._broker_id not in state.isr and state.leader != NO_LEADER:
                return "a replica of this broker is not in sync yet"
            peers.update(state.replicas)
        peers.discard(self._broker_id)
        for peer in sorted(peers):
            broker = image.brokers.get(peer)
            if broker is not None and _connects_early(broker) and peer not in connected:
                return f"broker {peer} has not opened its replication stream to this broker yet"
        return ""


def _connects_early(broker: BrokerState) -> bool:
    """Return whether the broker is live, and opens streams also to brokers that do not lead a partition yet.

    Older releases, which do not support METADATA_VERSION_WITH_HOSTS, open a stream only to brokers that already lead a
    partition.
    """
    supported = highest_supported(broker.features, METADATA_VERSION)
    return broker.is_live and supported >= METADATA_VERSION_WITH_HOSTS
