"""Producer identities: how the identity in a request is compared, and where new producer ids come from.

An identity is a producer id with an epoch. The coordinator gives both out; a higher epoch of one producer id fences all
lower ones, so producer ids never repeat and the epochs of one producer id only rise. Clients never see an epoch above
`CLIENT_EPOCH_MAX`: a marker may still need the epoch above it, and then the transactional id continues with a fresh
producer id at epoch 0.
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
    """The result of comparing the identity of a request with the state of its transactional id."""

    CURRENT = "current"
    RETRY = "retry"  # the identity before the last bump: its producer may not have seen the response yet
    STALE = "stale"  # an older epoch of a producer id of this transactional id
    FOREIGN = "foreign"  # a producer id that this transactional id does not have


@dataclass(slots=True)
class ProducerIdReserve:
    """Producer ids that a shard may give out, each once. The shard's host adds ids. The ids in the reserve of a
    discarded shard are never used.
    """

    size_max: int
    _ids: deque[ProducerId] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def missing(self) -> int:
        """Return how many producer ids the host should add."""
        return self.size_max - len(self._ids)

    def add(self, ids: Iterable[ProducerId]) -> None:
        self._ids.extend(ids)

    def take(self) -> ProducerId:
        """Remove and return a producer id that was never given out. The caller must have checked that there is one."""
        assert self._ids, "a handler took a producer id from an empty reserve"
        producer_id = self._ids.popleft()
        assert producer_id > NO_PRODUCER_ID, f"{producer_id} is no producer id"
        return producer_id
