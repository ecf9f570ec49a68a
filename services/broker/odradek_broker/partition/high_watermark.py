"""Computes how far the high watermark may move (rule R8), and how long it waits for a follower that may soon join the
ISR.

The high watermark is the lowest position over the *maximal ISR*: the committed ISR and the replicas that the pending
change would add. The controller may already have accepted the change and elected a replica that it adds, while the
response is still in transit; without waiting for that replica, the leader would acknowledge records that the replica
lacks. A member that the change removes still counts, because the controller may not have accepted the change.

The high watermark does not move while the committed ISR is smaller than min.insync.replicas. Replicas that left the ISR
below that size are eligible leaders (ELR, KIP-966), and they have everything below the high watermark only because the
high watermark has not moved since.

A follower may join the ISR once it has reached the high watermark, but a follower is always a round trip behind the
leader's log end. If the leader is alone in the ISR, the high watermark is the log end, so a follower that keeps up
could join only in a pause of the producers. Likewise a follower with a longer round trip than the slowest ISR member
could join only by luck. So the high watermark waits for the follower: it does not move until the follower has reached
it, which takes one more round trip. (Kafka: Partition.maybeIncrementLeaderHW waits for caught-up replicas that are
eligible to join.) Waiting is always safe, because it only keeps the high watermark lower.

Waiting adds to the latency of acks=all, so the leader waits only for a follower that would stay in the ISR after it has
joined. The measure is the *round*: the time from a Data message to the acknowledgement of everything that the log
contained when the message was sent.

- A round longer than half of `replica.lag.time.max.ms` is too slow: up to two rounds may pass between two moments at
  which the follower is known to be caught up (rule R10), so it would leave the ISR again.
- After a round of at most ROUND_FAST_MS the high watermark waits at once.
- Rounds in between mostly belong to a follower that is still catching up: they become shorter by themselves, and
  waiting now would cost seconds. After SLOW_ROUNDS_MAX such rounds in succession, the leader assumes that they are the
  follower's normal pace. (Ongaro's thesis, section 4.2.1, adds Raft servers by rounds.)

A wait ends when the leader proposes to add the follower, when the follower detaches or may no longer join, and at the
latest after the time of two rounds, or after ROUND_FAST_MS if that is longer. After a wait that ran out, the next wait
for the same follower can begin only after `replica.lag.time.max.ms`, so a follower that stops whenever the leader waits
for it delays acks=all only for a small part of the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from odradek_protocol.identity import Offset


class Position(Protocol):
    """A follower's acknowledged position."""

    @property
    def ack_to(self) -> Offset:
        """The exclusive end of what the follower acknowledged in this epoch; -1 before its first acknowledgement."""


def next_high_watermark(
    present: Offset, own_position: Offset, counted: Iterable[Position], *, is_under_min_isr: bool
) -> Offset:
    """Return the high watermark that follows from these positions, but at least `present`."""
    if is_under_min_isr:
        return present
    lowest = own_position
    for follower in counted:
        if follower.ack_to < lowest:
            lowest = follower.ack_to
    return lowest if lowest > present else present


ROUND_FAST_MS: Final = 500
SLOW_ROUNDS_MAX: Final = 10


class JoinWait:
    """Decides whether the high watermark waits for one follower outside the ISR, and for how long."""

    __slots__ = ("_lag_max_ms", "_not_before_ms", "_slow_rounds", "_until_ms")

    def __init__(self, *, lag_max_ms: int) -> None:
        self._lag_max_ms = lag_max_ms
        self._slow_rounds = 0
        self._not_before_ms = 0
        self._until_ms: int | None = None

    @property
    def is_on(self) -> bool:
        return self._until_ms is not None

    def round_ended(self, round_ms: int, now_ms: int) -> bool:
        """Return whether the high watermark may begin to wait for this follower, given the length of the follower's
        last round.
        """
        if 2 * round_ms > self._lag_max_ms:
            self._slow_rounds = 0
            return False
        self._slow_rounds = 0 if round_ms <= ROUND_FAST_MS else self._slow_rounds + 1
        keeps_up = round_ms <= ROUND_FAST_MS or self._slow_rounds >= SLOW_ROUNDS_MAX
        return keeps_up and self._until_ms is None and now_ms >= self._not_before_ms

    def begin(self, round_ms: int, now_ms: int) -> None:
        self._until_ms = now_ms + max(ROUND_FAST_MS, 2 * round_ms)

    def end(self) -> None:
        """Stop waiting for this follower: the leader has proposed to add it to the ISR, or it can no longer join."""
        self._until_ms = None

    def expire(self, now_ms: int) -> bool:
        """End a wait whose time is over. Return whether a wait ended."""
        if self._until_ms is None or now_ms < self._until_ms:
            return False
        self._until_ms = None
        self._not_before_ms = now_ms + self._lag_max_ms
        return True

    def excuse(self, stall_ms: int) -> None:
        """Extend the wait by the time for which the leader itself did not run and received nothing."""
        if self._until_ms is not None:
            self._until_ms += stall_ms
