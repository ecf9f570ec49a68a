"""The followers of one leader in one epoch, and which of them bound its watermark.

They are those replicas that the image lists, the leader left out. Sets of them: *attached* are
pushed to, *counted* bound the watermark: the maximal ISR (isr.py), and those outside it that the
watermark waits for (join_wait.py); *lagging* were not caught up for too long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set

from odradek_broker.partition.events import BrokerView, FollowerSession
from odradek_broker.partition.leading.follower_progress import FollowerProgress
from odradek_broker.partition.leading.join_wait import JoinWait
from odradek_protocol.identity import BrokerId, Offset


class Followers:
    """All of them, by broker."""

    __slots__ = ("_by_broker", "_lag_max_ms", "counted", "is_any_waited_for")

    def __init__(self, *, lag_max_ms: int) -> None:
        """`lag_max_ms`: a follower that was not caught up for longer is out of sync (R10)."""
        self._lag_max_ms = lag_max_ms
        self.is_any_waited_for = False
        self._by_broker: dict[BrokerId, FollowerProgress] = {}
        self.counted: tuple[FollowerProgress, ...] = ()

    def __len__(self) -> int:
        return len(self._by_broker)

    def __iter__(self) -> Iterator[FollowerProgress]:
        return iter(self._by_broker.values())

    def get(self, broker_id: BrokerId) -> FollowerProgress | None:
        return self._by_broker.get(broker_id)

    def attached(self, session: FollowerSession) -> FollowerProgress | None:
        """The one that is attached in exactly this session."""
        follower = self._by_broker.get(session.broker_id)
        return follower if follower is not None and follower.is_attached_in(session) else None

    def keep(
        self,
        replicas: Collection[BrokerId],
        brokers: Mapping[BrokerId, BrokerView],
        now_ms: int,
        *,
        is_fsync: bool,
    ) -> None:
        """Know these and no others; who is new has lagged for no time yet. `is_fsync`: from now on
        only what they synced counts."""
        for gone in self._by_broker.keys() - set(replicas):
            del self._by_broker[gone]
        for broker_id in replicas:
            follower = self._by_broker.get(broker_id)
            if follower is None:
                follower = FollowerProgress(
                    broker_id=broker_id,
                    caught_up_at_ms=now_ms,
                    join_wait=JoinWait(lag_max_ms=self._lag_max_ms),
                )
                self._by_broker[broker_id] = follower
            broker = brokers.get(broker_id)
            if broker is not None:
                follower.see(broker)
            if follower.is_fsync is not is_fsync:
                follower.count_by(is_fsync)

    def count(self, maximal: Set[BrokerId]) -> None:
        """From now on the positions of these, and of whom it waits for, bound the watermark."""
        followers = self._by_broker.values()
        self.is_any_waited_for = any(f.join_wait.is_on for f in followers)
        self.counted = tuple(f for f in followers if f.broker_id in maximal or f.join_wait.is_on)

    def appended(self, base_offset: Offset, now_ms: int) -> None:
        """The log grew: who had all of it until now lags from now on."""
        for follower in self._by_broker.values():
            if follower.ack_to == base_offset:
                follower.caught_up_at_ms = now_ms

    def lowest_start(self, own_start: Offset, electable: Set[BrokerId]) -> Offset:
        """The lowest log start of ours and theirs who may be elected, or live, or are attached. Who
        is none of these hears of ours when it attaches, before it can be in sync."""
        starts = [
            follower.log_start
            for follower in self._by_broker.values()
            if follower.is_live or follower.session is not None or follower.broker_id in electable
        ]
        return min([own_start, *starts])

    def lagging(self, log_end: Offset, now_ms: int) -> set[BrokerId]:
        """Who was not caught up for too long (R10)."""
        lagging: set[BrokerId] = set()
        for follower in self._by_broker.values():
            if follower.ack_to >= log_end:  # it has all we have, however long ago it said so
                follower.caught_up_at_ms = now_ms
            elif now_ms - follower.caught_up_at_ms > self._lag_max_ms:
                lagging.add(follower.broker_id)
        return lagging
