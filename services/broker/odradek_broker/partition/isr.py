"""The in-sync replicas as their leader knows them: the committed ISR, and the change that the leader has proposed.

    SETTLED --propose--> PENDING --image with a higher partition epoch--> SETTLED
                           |  ^
       refused for a reason|  |
       that may pass       v  |
                        WITHDRAWING (a proposal of the committed ISR itself)

One change is pending at a time (rule R16). Only the image ends the change, in the order of the metadata feed (rule
R18). A refusal does not end the change, because a refusal is about one copy of the proposal, while another copy, sent
again after a time-out, may still be in transit and be accepted later.

- INVALID_UPDATE_VERSION and FENCED_LEADER_EPOCH say that the partition epoch has risen, perhaps because the first copy
  of this very proposal was accepted. The image with the new epoch will arrive.
- INELIGIBLE_REPLICA may be temporary: when the broker is unfenced, the controller could still accept an older copy. To
  void all copies, the leader proposes the committed ISR unchanged; when the controller accepts that, the partition
  epoch rises, and every older copy is void.
- Any other result (no response, NOT_CONTROLLER) leaves the outcome open, and the leader sends the same proposal again.

Invariant: a replica that can be elected cleanly, now or through a proposal in transit, is in the maximal ISR.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from odradek_broker.compiled import Mutable
from odradek_broker.partition.effects import ProposeIsr
from odradek_broker.partition.events import PartitionChanged
from odradek_protocol.identity import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch
from odradek_protocol.kafka.error_codes import ErrorCode

MEMBERS_CACHED_MAX: Final = 4096


class _Pending(Mutable):
    proposal: ProposeIsr
    sent_at_ms: int
    is_withdrawal: bool


class Isr:
    """The committed and the maximal ISR of one partition in one leader epoch. The maximal ISR also contains the
    replicas that the pending change would add.
    """

    __slots__ = (
        "_pending",
        "committed",
        "eligible",
        "is_recovering",
        "is_under_min",
        "leader_epoch",
        "maximal",
        "min_isr",
        "partition_epoch",
    )

    def __init__(self, view: PartitionChanged) -> None:
        self.leader_epoch: LeaderEpoch = view.leader_epoch
        self.partition_epoch: PartitionEpoch = view.partition_epoch
        self.committed = members(view.isr)
        self.maximal = self.committed
        self.eligible = members(view.elr)
        """The ELR: replicas that may be elected if no member of the ISR can."""
        self.is_recovering = view.is_recovering
        self.min_isr = effective_min_isr(view)
        self.is_under_min = len(self.committed) < self.min_isr
        self._pending: _Pending | None = None

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def adopt(self, view: PartitionChanged) -> None:
        """Apply the metadata image's state of this leader epoch. A higher partition epoch ends the pending change."""
        assert view.leader_epoch == self.leader_epoch, f"{view} in epoch {self.leader_epoch}"
        self.min_isr = effective_min_isr(view)
        if view.partition_epoch > self.partition_epoch:
            self.partition_epoch = view.partition_epoch
            self.committed = self.maximal = members(view.isr)
            self.eligible = members(view.elr)
            self.is_recovering = view.is_recovering
            self._pending = None
        self.is_under_min = len(self.committed) < self.min_isr

    def propose(
        self,
        isr: tuple[tuple[BrokerId, BrokerEpoch], ...],
        *,
        is_recovering: bool,
        now_ms: int,
        is_withdrawal: bool = False,
    ) -> ProposeIsr:
        """Make this ISR the pending change. Its members bound the high watermark from now on."""
        proposal = ProposeIsr(
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=isr,
            is_recovering=is_recovering,
        )
        self._pending = _Pending(proposal, now_ms, is_withdrawal)
        self.maximal = self.maximal | {broker_id for broker_id, _ in isr}
        return proposal

    def must_withdraw(
        self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch, error_code: ErrorCode
    ) -> bool:
        """Return whether the leader must withdraw the pending change, given this response of the controller."""
        return (
            self._pending is not None
            and not self._pending.is_withdrawal
            and error_code is ErrorCode.INELIGIBLE_REPLICA
            and leader_epoch == self.leader_epoch
            and partition_epoch == self.partition_epoch
        )

    def resend_due(self, now_ms: int, resend_ms: int) -> ProposeIsr | None:
        """Return the pending proposal if it is time to send it again."""
        pending = self._pending
        if pending is None or now_ms - pending.sent_at_ms < resend_ms:
            return None
        pending.sent_at_ms = now_ms
        return pending.proposal


@lru_cache(maxsize=MEMBERS_CACHED_MAX)
def members(brokers: tuple[BrokerId, ...]) -> frozenset[BrokerId]:
    """Return the brokers as a set. Partitions with the same ISR share one set, because a set takes 216 bytes."""
    return frozenset(brokers)


def effective_min_isr(view: PartitionChanged) -> int:
    """Return min.insync.replicas, but at most the number of replicas (KIP-966)."""
    return min(view.min_insync_replicas, len(view.replicas))
