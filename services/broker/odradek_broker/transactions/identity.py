"""Producer identities: the comparison of a request's identity with the current one, and the source of new producer ids.

An identity is a producer id with an epoch, and both are assigned by the coordinator. A higher epoch of a producer id
fences all lower ones, so producer ids are never reused and the epochs of a producer id only rise. Clients never get an
epoch above `CLIENT_EPOCH_MAX`, because a marker may need the next epoch. After such a marker, the transactional id
continues with a new producer id at epoch 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec import Struct

from odradek_protocol.identity import NO_PRODUCER_ID, ProducerEpoch, ProducerId

NO_EPOCH: Final = ProducerEpoch(-1)
CLIENT_EPOCH_MAX: Final = ProducerEpoch(32_766)
MARKER_EPOCH_MAX: Final = ProducerEpoch(32_767)


class ProducerIdentity(Struct, frozen=True, gc=False):
    """A producer id and its epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"


class Match(Enum):
    """The result of the comparison of a request's identity with the state of its transactional id."""

    CURRENT = "current"
    RETRY = "retry"  # the identity before the last epoch bump; the producer may have missed its new identity
    STALE = "stale"  # an older epoch of a producer id of this transactional id
    FOREIGN = "foreign"  # a producer id that does not belong to this transactional id


@dataclass(slots=True)
class ProducerIdReserve:
    """Unused producer ids of a shard. The host adds ids, because a state machine cannot request them from the
    controller. The ids of a discarded shard are never used.
    """

    size_max: int
    _ids: deque[ProducerId] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def missing(self) -> int:
        """The number of producer ids that the host should add."""
        return self.size_max - len(self._ids)

    def add(self, ids: Iterable[ProducerId]) -> None:
        self._ids.extend(ids)

    def take(self) -> ProducerId:
        """Remove and return an unused producer id. The caller must have checked that there is one."""
        assert self._ids, "a handler took a producer id from an empty reserve"
        producer_id = self._ids.popleft()
        assert producer_id > NO_PRODUCER_ID, f"{producer_id} is not a producer id"
        return producer_id
