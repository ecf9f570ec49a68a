"""Assigns each partition that this broker follows to a stream to its leader, in one of two lanes.

A lane is one of the two streams to a leader. A partition starts in the hot lane. If its Attached response shows that it
is far behind, it moves to the catch-up lane, another connection with less credit, until the partition is close to the
end of the log. So a broker that returns after an hour does not slow down the partitions that are in sync. The partition
stays attached in the old lane until the stream of the new lane is open. The inbound rate of all catch-up lanes together
can be limited (`follower.replication.throttled.rate`), also at run time.

To each live broker that shares a partition with this one, the stream of the hot lane stays open even while no partition
uses it. So the connection exists before that broker becomes a leader, and that broker knows, before it reports that
it is ready, that its followers can reach it (`cluster/catch_up.py`). No stream is kept open to a broker that is down,
because this would only repeat failed attempts to connect.

A change of the lane takes a round trip without data. Under load, this alone may put a partition further behind than the
limit. So the first Attached response after a return to the hot lane does not move the partition again: otherwise it
could change lanes forever and never join the ISR.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

from odradek_broker.access.quotas import TokenBucket
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.streams.follower_stream import (
    Dial,
    FollowerIdentity,
    FollowerStream,
    HostKey,
    Lane,
    host_key,
)
from odradek_protocol.identity import NO_BROKER, BrokerId
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

BEHIND_RECORDS: Final = 20_000
NEAR_RECORDS: Final = 2_000
THROTTLE_BURST_S: Final = 1.0


class FollowerLinks:
    """All replication streams of this broker to its leaders."""

    def __init__(
        self,
        *,
        identity: FollowerIdentity,
        endpoint_of: Callable[[BrokerId], tuple[str, int] | None],
        is_live: Callable[[BrokerId], bool],
        dial: Dial,
        make_stream: Callable[..., FollowerStream] = FollowerStream,
        behind_records: int = BEHIND_RECORDS,
        near_records: int = NEAR_RECORDS,
        catch_up_bytes_per_s: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`endpoint_of` returns the address of a broker's replication listener in the image. `is_live` returns whether
        the image shows the broker as unfenced and not shutting down.

        A partition that is more than `behind_records` behind moves to the catch-up lane, and back when it is less than
        `near_records` behind. `catch_up_bytes_per_s` of 0 means no limit.
        """
        self._make_stream = make_stream
        self._behind_records = behind_records
        self._near_records = near_records
        self._identity = identity
        self._endpoint_of = endpoint_of
        self._is_live = is_live
        self._dial = dial
        self._clock = clock
        self._streams: dict[tuple[BrokerId, Lane], FollowerStream] = {}
        self._leader_of: dict[HostKey, BrokerId] = {}
        # Brokers that share or shared a partition with this one.
        self._peers: set[BrokerId] = set()
        # Partitions that return to the hot lane, but are not attached in it yet.
        self._returning: set[HostKey] = set()
        self._session_ids = itertools.count(1)
        self._throttle = TokenBucket(
            rate=catch_up_bytes_per_s or math.inf,
            burst_s=THROTTLE_BURST_S,
            now_s=clock.monotonic_ms() / 1000,
        )
        self._by_session: dict[int, FollowerStream] = {}
        # Streams that still send their last messages before they end, oldest first: an ordered set.
        self._ending: dict[FollowerStream, None] = {}
        self._is_closed = False

    def limit_catch_up(self, bytes_per_s: int) -> None:
        """Change the limit of all catch-up lanes together; 0 means no limit."""
        rate = bytes_per_s or math.inf
        if rate == self._throttle.rate:
            return
        self._throttle.set_rate(rate, self._clock.monotonic_ms() / 1000)
        for stream in self._streams.values():
            # A stream may be waiting for as long as the old rate required, which can be hours.
            stream.throttle_changed()

    def stream(self, session_id: int) -> FollowerStream | None:
        """Return the open stream of that session; None if it has ended."""
        return self._by_session.get(session_id)

    def follow(self, host: PartitionHost, leader: BrokerId) -> None:
        """Make `host` follow `leader`. With NO_BROKER, make it stop following.

        The host gets SessionReady in a later iteration of the event loop.
        """
        key = host_key(host)
        before = self._leader_of.get(key, NO_BROKER)
        if before not in (leader, NO_BROKER):
            self._leave(key, before)
        if leader == NO_BROKER or self._is_closed:
            return
        if before != leader:
            self._leader_of[key] = leader
            self._open(leader, Lane.HOT).add(key, host)
        else:
            # The leader is the same, but has a new epoch: the partition must attach again in its present lane.
            for lane in Lane:
                stream = self._streams.get((leader, lane))
                if stream is not None and stream.has(key):
                    stream.add(key, host)

    def share(self, replicas: Iterable[BrokerId]) -> None:
        """Keep a stream open to each of these brokers, which have a replica of the same partition, while the broker is
        live.
        """
        for broker_id in replicas:
            if broker_id not in self._peers and broker_id != self._identity.broker_id:
                self._peers.add(broker_id)
                self._open_to_peer(broker_id)

    def broker_changed(self, broker_id: BrokerId) -> None:
        """Reconnect to a broker at once, because the image changed and may have a new address of the broker."""
        self._open_to_peer(broker_id)
        for lane in Lane:
            stream = self._streams.get((broker_id, lane))
            if stream is not None:
                stream.kick()
                self._close_if_empty(stream)

    async def close(self) -> None:
        """End all streams. From now on no host follows a leader."""
        # While one stream is being closed, data that another stream receives could open a new stream, which nobody
        # would close.
        self._is_closed = True
        streams, self._streams = [*self._streams.values(), *self._ending], {}
        for stream in streams:
            await stream.close()

    def _distance(self, stream: FollowerStream, host: PartitionHost, records: int) -> None:
        """Move a partition to the lane that fits the number of records by which it is behind its leader."""
        if self._is_closed:
            return
        key = host_key(host)
        if stream.lane is Lane.HOT and key in self._returning:
            self._returning.discard(key)
            return
        lane = stream.lane
        if records > self._behind_records:
            lane = Lane.CATCH_UP
        elif records < self._near_records:
            lane = Lane.HOT
        if lane is not stream.lane and self._leader_of.get(key) == stream.leader:
            other = self._open(stream.leader, lane)
            if not other.has(key):
                other.add(key, host)
                if lane is Lane.HOT:
                    self._returning.add(key)

    def _ready(self, stream: FollowerStream, key: HostKey) -> None:
        """Remove a partition from the other lane, because it attaches in this stream now."""
        other_lane = Lane.HOT if stream.lane is Lane.CATCH_UP else Lane.CATCH_UP
        other = self._streams.get((stream.leader, other_lane))
        if other is not None and other.has(key):
            other.give_up(key)
            self._close_if_empty(other)

    def _open_to_peer(self, broker_id: BrokerId) -> None:
        if not self._is_closed and self._is_kept(broker_id):
            self._open(broker_id, Lane.HOT)

    def _is_kept(self, broker_id: BrokerId) -> bool:
        """Return whether the hot stream to this broker stays open although no partition uses it."""
        return broker_id in self._peers and self._is_live(broker_id)

    def _open(self, leader: BrokerId, lane: Lane) -> FollowerStream:
        stream = self._streams.get((leader, lane))
        if stream is None:
            stream = self._streams[leader, lane] = self._make_stream(
                leader,
                lane,
                identity=self._identity,
                endpoint_of=self._endpoint_of,
                dial=self._dial,
                session_ids=self._session_ids,
                by_session=self._by_session,
                throttle=self._throttle if lane is Lane.CATCH_UP else None,
                clock=self._clock,
                on_distance=self._distance,
                on_ready=self._ready,
            )
        return stream

    def _leave(self, key: HostKey, leader: BrokerId) -> None:
        del self._leader_of[key]
        self._returning.discard(key)
        for lane in Lane:
            stream = self._streams.get((leader, lane))
            if stream is not None and stream.has(key):
                stream.remove(key)
                self._close_if_empty(stream)

    def _close_if_empty(self, stream: FollowerStream) -> None:
        if stream.lane is Lane.HOT and self._is_kept(stream.leader):
            return
        if stream.is_empty and self._streams.get((stream.leader, stream.lane)) is stream:
            del self._streams[stream.leader, stream.lane]
            self._ending[stream] = None
            stream.end(self._ending.pop)
