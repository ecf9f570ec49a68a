"""The followers of one leader in one leader epoch: their positions, and which of them bound the high watermark.

The followers are the replicas in the image without the leader. The leader sends data to a follower that is *attached*.
A follower that is *counted* bounds the high watermark: it is a member of the maximal ISR (isr.py), or the high
watermark waits for it to join the ISR (`JoinWait`). A follower *lags* if it was not caught up for longer than
`replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from odradek_broker.partition.effects import DataDue
from odradek_broker.partition.events import BrokerView, FollowerSession
from odradek_broker.partition.high_watermark import JoinWait
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, LeaderEpoch, Offset

UNKNOWN: Final = Offset(-1)
NO_ROUND: Final = -1


@dataclass(kw_only=True)
class FollowerProgress:
    """The progress of one follower in one leader epoch, as its leader knows it. Positions are exclusive ends; each is
    UNKNOWN until the follower reports it in this epoch and session.

    When a topic's durability changes, acknowledgements of written data may still arrive after the leader has begun to
    count synced data, and the reverse. So both positions are stored, and `ack_to` is the one that counts at present.
    """

    broker_id: BrokerId
    caught_up_at_ms: int
    join_wait: JoinWait
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH  # the follower's broker epoch in the image
    is_live: bool = False  # whether the image shows the broker as not fenced
    # Whether the broker is live and not shutting down, so that it may join the ISR.
    is_eligible: bool = False
    session: FollowerSession | None = None  # the session in which the follower is attached
    attached_epoch: BrokerEpoch = NO_BROKER_EPOCH  # the broker epoch in the follower's last Attach
    attach_seq: int = 0  # the number of the follower's last Attach
    ack_to: Offset = UNKNOWN
    is_fsync: bool = False  # whether only synced positions count
    log_start: Offset = UNKNOWN  # the follower's log start offset, as last reported
    sent_to: Offset = UNKNOWN
    high_watermark_sent: Offset = UNKNOWN
    log_start_sent: Offset = UNKNOWN
    # The length of the last round that `JoinWait` has not evaluated yet (see high_watermark.py).
    round_ms: int = NO_ROUND
    # The leader's log end at the time when it sent one of its Data messages. UNKNOWN once the follower has acknowledged
    # everything below that log end.
    _sampled_end: Offset = UNKNOWN
    _sampled_at_ms: int = 0
    _written_to: Offset = UNKNOWN
    _synced_to: Offset = UNKNOWN

    def see(self, broker: BrokerView) -> None:
        """Apply the state of the follower's broker in the metadata image. If the broker has registered again, it may
        have lost data, so the positions that it reported before become UNKNOWN.
        """
        self.is_live = not broker.is_fenced
        self.is_eligible = self.is_live and not broker.in_shutdown
        if not self.is_eligible:
            self.join_wait.end()
        self.broker_epoch = broker.broker_epoch
        if self.attached_epoch < broker.broker_epoch:
            self._forget()

    def hear(self, broker_epoch: BrokerEpoch, attach_seq: int) -> bool:
        """Record that the follower's process with this broker epoch sent an Attach. Return False if the leader must
        ignore the Attach, because a later Attach has already arrived in another stream.
        """
        if broker_epoch == self.attached_epoch and attach_seq <= self.attach_seq:
            return False
        self.attached_epoch, self.attach_seq = broker_epoch, attach_seq
        self._forget()
        return True

    def _forget(self) -> None:
        self.detach()
        self.ack_to = self._written_to = self._synced_to = self.log_start = UNKNOWN

    def count_by(self, is_fsync: bool) -> None:
        """Count synced positions from now on, or written positions, depending on the topic's durability; `ack_to` may
        fall.
        """
        self.is_fsync = is_fsync
        self.ack_to = self._synced_to if is_fsync else self._written_to

    def attach(
        self,
        session: FollowerSession,
        log_end: Offset,
        *,
        high_watermark: Offset,
        log_start: Offset,
    ) -> None:
        """Record that the follower is attached and gets data from `log_end` on. Its position stays UNKNOWN until it
        acknowledges data in this session, because with durability=fsync the log end in its Attach may not be synced.
        """
        self.session = session
        self.sent_to = log_end
        self.high_watermark_sent = high_watermark
        self.log_start_sent = log_start
        self._sampled_end = UNKNOWN

    def is_attached_in(self, session: FollowerSession) -> bool:
        # The two sessions are nearly always the same object, and `is` takes a tenth of the time that `==` takes.
        attached = self.session
        return attached is session or attached == session

    def detach(self) -> None:
        """Record that the follower is no longer attached. Its earlier acknowledgements still count."""
        self.session = None
        self._sampled_end = UNKNOWN
        self.round_ms = NO_ROUND
        self.join_wait.end()

    def due(self, log: LogPositions, leader_epoch: LeaderEpoch) -> DataDue | None:
        """Return the next Data message for this follower; None: it has been sent everything in this session."""
        if (
            self.sent_to >= log.log_end
            and self.high_watermark_sent >= log.high_watermark
            and self.log_start_sent >= log.log_start
        ):
            return None
        return DataDue(
            from_offset=self.sent_to,
            log_end=log.log_end,
            high_watermark=log.high_watermark,
            log_start=log.log_start,
            leader_epoch=leader_epoch,
        )

    def sent(
        self, end_offset: Offset, high_watermark: Offset, *, log_end: Offset, now_ms: int
    ) -> None:
        """Record that a Data message up to `end_offset` was sent. Record the leader's log end at this time, too, to
        measure the lag when the follower acknowledges that log end (rule R10).
        """
        if end_offset > self.sent_to:
            self.sent_to = end_offset
        if high_watermark > self.high_watermark_sent:
            self.high_watermark_sent = high_watermark
        if self._sampled_end == UNKNOWN:
            self._sampled_end, self._sampled_at_ms = log_end, now_ms

    def acknowledged(
        self, ack_to: Offset, *, is_synced: bool, log_end: Offset, now_ms: int
    ) -> bool:
        """Record an acknowledgement. Return whether the position that counts rose.

        The follower is caught up now if it has reached the leader's log end. If it has only reached the log end that
        `sent` recorded, it was caught up when that Data message was sent (rule R10).
        """
        if is_synced and ack_to > self._synced_to:
            self._synced_to = ack_to
        if ack_to > self._written_to:
            self._written_to = ack_to
        if ack_to <= self.ack_to or (self.is_fsync and not is_synced):
            return False
        self.ack_to = ack_to
        if ack_to >= log_end:
            self.caught_up_at_ms = now_ms
            self._sampled_end = UNKNOWN
        elif self._sampled_end != UNKNOWN and ack_to >= self._sampled_end:
            self.caught_up_at_ms = max(self.caught_up_at_ms, self._sampled_at_ms)
            self.round_ms = now_ms - self._sampled_at_ms
            self._sampled_end = UNKNOWN
        return True

    def excuse(self, stall_ms: int, *, now_ms: int) -> None:
        """Do not count as this follower's lag the time for which the leader itself did not run."""
        self.caught_up_at_ms = min(now_ms, self.caught_up_at_ms + stall_ms)
        self.join_wait.excuse(stall_ms)


class Followers:
    """The followers of one leader, by broker id."""

    __slots__ = ("_by_broker", "_lag_max_ms", "counted", "is_any_waited_for")

    def __init__(self, *, lag_max_ms: int) -> None:
        """`lag_max_ms` is `replica.lag.time.max.ms` (rule R10)."""
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
        """Return the follower that is attached in exactly this session."""
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
        """Make the followers exactly those in `replicas`. A new follower counts as caught up now. With `is_fsync`, only
        synced positions count from now on.
        """
        for removed_id in self._by_broker.keys() - set(replicas):
            del self._by_broker[removed_id]
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
        """Determine the followers that bound the high watermark: the maximal ISR, and the followers for which the high
        watermark waits.
        """
        followers = self._by_broker.values()
        self.is_any_waited_for = any(f.join_wait.is_on for f in followers)
        self.counted = tuple(f for f in followers if f.broker_id in maximal or f.join_wait.is_on)

    def appended(self, base_offset: Offset, now_ms: int) -> None:
        """Record that the leader appended records from `base_offset` on. A follower that had everything below
        `base_offset` was caught up until now.
        """
        for follower in self._by_broker.values():
            if follower.ack_to == base_offset:
                follower.caught_up_at_ms = now_ms

    def lowest_start(self, own_start: Offset, electable: Set[BrokerId]) -> Offset:
        """Return the lowest log start offset of the leader and of the followers that may be elected, are live or are
        attached. A follower that is none of these receives the leader's log start when it attaches, before it can
        join the ISR.
        """
        starts = [
            follower.log_start
            for follower in self._by_broker.values()
            if follower.is_live or follower.session is not None or follower.broker_id in electable
        ]
        return min([own_start, *starts])

    def note_caught_up(self, log_end: Offset, now_ms: int) -> None:
        """Record which followers are caught up now.

        The leader calls this before an event that may reset a follower's position to UNKNOWN, such as a new
        registration of its broker. The follower's lag is then measured from this moment. Without traffic, the last
        check may have been hours ago.
        """
        for follower in self._by_broker.values():
            if follower.ack_to >= log_end:
                follower.caught_up_at_ms = now_ms

    def wait_for_time(self, log_end: Offset, isr_count: int) -> bool:
        """Return whether the lag of a follower can change without an event: a follower may begin to lag, or is outside
        the ISR.

        A follower that has acknowledged the whole log does not lag. When the log grows, such a follower counts as
        caught up until that moment (`appended`).
        """
        return (
            self.is_any_waited_for
            or isr_count <= len(self._by_broker)
            or any(follower.ack_to < log_end for follower in self._by_broker.values())
        )

    def lagging(self, log_end: Offset, now_ms: int) -> set[BrokerId]:
        """Return the followers that were not caught up for longer than `replica.lag.time.max.ms` (rule R10)."""
        # A follower that has the whole log does not lag, even if it acknowledged the end of the log long ago.
        self.note_caught_up(log_end, now_ms)
        return {
            follower.broker_id
            for follower in self._by_broker.values()
            if now_ms - follower.caught_up_at_ms > self._lag_max_ms
        }
