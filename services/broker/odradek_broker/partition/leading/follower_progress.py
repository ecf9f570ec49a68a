"""One follower, as its leader knows it in one leader epoch: where it is, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek_broker.partition.events import BrokerView, FollowerSession
from odradek_broker.partition.leading.data_due import DataDue
from odradek_broker.partition.leading.join_wait import JoinWait
from odradek_broker.partition.log_positions import LogPositions
from odradek_protocol.identity import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
)

UNKNOWN: Final = Offset(-1)
NO_ROUND: Final = -1


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """Positions are exclusive ends; UNKNOWN until told in this epoch and session.

    When a topic's durability changes, some acknowledgements of what is only written come after the
    leader has begun to count what is synced, and the other way round: so each kind is remembered
    for itself, and `ack_to` is the one that counts now.
    """

    broker_id: BrokerId
    caught_up_at_ms: int
    join_wait: JoinWait
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH  # of the image
    is_live: bool = False  # unfenced, by the image
    is_eligible: bool = False  # that, and in no shutdown
    session: FollowerSession | None = None  # where it is attached
    life: BrokerEpoch = NO_BROKER_EPOCH  # the registration that attached last
    attach_seq: int = 0  # of its last Attach
    ack_to: Offset = UNKNOWN
    is_fsync: bool = False  # only what is synced counts
    log_start: Offset = UNKNOWN  # as it told last
    sent_to: Offset = UNKNOWN
    high_watermark_sent: Offset = UNKNOWN
    log_start_sent: Offset = UNKNOWN
    round_ms: int = NO_ROUND  # of the round that ended last (join_wait.py), until it is judged
    _sampled_end: Offset = UNKNOWN  # our log end when a Data was sent, until acknowledged
    _sampled_at_ms: int = 0
    _written_to: Offset = UNKNOWN
    _synced_to: Offset = UNKNOWN

    def see(self, broker: BrokerView) -> None:
        """The image moved. A newer registration may have lost bytes: forget what the older told."""
        self.is_live = not broker.is_fenced
        self.is_eligible = self.is_live and not broker.in_shutdown
        if not self.is_eligible:
            self.join_wait.end()
        self.broker_epoch = broker.broker_epoch
        if self.life < broker.broker_epoch:
            self._forget()

    def hear(self, life: BrokerEpoch, attach_seq: int) -> bool:
        """An Attach came; False if a later one came before it, in another lane: it is void."""
        if life == self.life and attach_seq <= self.attach_seq:
            return False
        self.life, self.attach_seq = life, attach_seq
        self._forget()
        return True

    def _forget(self) -> None:
        self.detach()
        self.ack_to = self._written_to = self._synced_to = self.log_start = UNKNOWN

    def count_by(self, is_fsync: bool) -> None:
        """The topic's durability is this; what it acknowledged may count for less now."""
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
        """Push from `log_end`. Its position is unknown until it acknowledges in this session: with
        durability=fsync the end that it told may not be synced."""
        self.session = session
        self.sent_to = log_end
        self.high_watermark_sent = high_watermark
        self.log_start_sent = log_start
        self._sampled_end = UNKNOWN

    def is_attached_in(self, session: FollowerSession) -> bool:
        """Whether it is pushed to in this session."""
        present = self.session  # mostly the same object, which is told ten times faster
        return present is session or present == session

    def detach(self) -> None:
        """Push no longer. What it acknowledged it still has."""
        self.session = None
        self._sampled_end = UNKNOWN
        self.round_ms = NO_ROUND
        self.join_wait.end()

    def due(self, log: LogPositions, leader_epoch: LeaderEpoch) -> DataDue | None:
        """What it has not been sent in this session."""
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
        """A Data up to `end_offset` left; remember our log end, to judge the lag by (R10)."""
        if end_offset > self.sent_to:
            self.sent_to = end_offset
        if high_watermark > self.high_watermark_sent:
            self.high_watermark_sent = high_watermark
        if self._sampled_end == UNKNOWN:
            self._sampled_end, self._sampled_at_ms = log_end, now_ms

    def acknowledged(
        self, ack_to: Offset, *, is_synced: bool, log_end: Offset, now_ms: int
    ) -> bool:
        """Whether the position that counts rose. Caught up when it reaches our end, or the end of
        when the sample was taken (R10)."""
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
        """The leader itself stood still: that time is not the follower's lag."""
        self.caught_up_at_ms = min(now_ms, self.caught_up_at_ms + stall_ms)
        self.join_wait.excuse(stall_ms)
