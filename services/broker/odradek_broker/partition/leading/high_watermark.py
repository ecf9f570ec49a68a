"""How far the high watermark may move (R8).

It is the lowest position over the *maximal ISR*: the committed ISR and whoever the pending change
would add. The controller may already have accepted the change and elected the newcomer, while the
answer is still on its way; a watermark that did not wait for it would acknowledge records that the
newcomer lacks. A member about to leave still counts, for the mirror reason.

A follower outside it that keeps up is waited for, for a bounded time: else it could not join while
producers do not pause (join_wait.py).

It stands still while the committed ISR is smaller than min.insync.replicas: replicas that left
below that size are eligible leaders (ELR, KIP-966) and hold all below the watermark only because
it has not moved since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from odradek_protocol.identity import Offset


class Position(Protocol):
    """A follower as the leader knows it."""

    @property
    def ack_to(self) -> Offset:
        """End of what it has acknowledged in this epoch; -1 before the first acknowledgement."""


def next_high_watermark(
    present: Offset, own_position: Offset, counted: Iterable[Position], *, is_under_min_isr: bool
) -> Offset:
    """The watermark after these positions; never below `present`."""
    if is_under_min_isr:
        return present
    lowest = own_position
    for follower in counted:
        if follower.ack_to < lowest:
            lowest = follower.ack_to
    return lowest if lowest > present else present
