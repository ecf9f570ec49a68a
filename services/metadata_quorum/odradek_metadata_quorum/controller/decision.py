"""The values around a handler: the decision that it becomes, the settings and the random draws it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from odradek_protocol.identity import ControllerId, MetadataOffset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import INITIAL_LEVELS, FeatureLevels
from odradek_protocol.metadata.records import MetadataRecord

Response = TypeVar("Response", covariant=True)
MESSAGE_CHARACTERS_MAX: Final = 1_000
_NO_OFFSET: Final = MetadataOffset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Response]):
    """A response that may be sent once `records` are committed, as one batch.

    Without records there is nothing to commit; but the decision may rest on batches that are
    still in flight, so the response waits until those are committed. `payload` is the batch as it is
    proposed to the quorum, empty without records.

    `offset` is the metadata offset from which on the response is true of an image: that of the
    decision's own batch, or, without records, of the last batch before it. A request that is repeated
    because its first response was lost changes nothing the second time, and still has to be
    readable where the client reads next. A standby's responses have no offset: -1.
    """

    response: Response
    records: tuple[MetadataRecord, ...] = ()
    payload: bytes = b""
    offset: MetadataOffset = _NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one item: an error code, and a sentence for people that says the way out."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""

    def __post_init__(self) -> None:
        # The message may quote the client, and older Kafka responses hold no string above 32,767 bytes.
        if len(self.message) > MESSAGE_CHARACTERS_MAX:
            object.__setattr__(self, "message", f"{self.message[:MESSAGE_CHARACTERS_MAX]}...")

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return self.error is ErrorCode.NONE


GOOD = Outcome()


class BatchTooLarge(Exception):
    """A request needs more metadata than fits into one atomic batch; nothing of it was done."""


class Draws(Protocol):
    """The random draws that decisions need; `random.Random` is one."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""

    def randrange(self, stop: int, /) -> int:
        """Return a whole number from 0 to below `stop`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The controller's settings; times in ms of the caller's monotonic clock."""

    cluster_id: str
    session_ms: int = 3_000  # silence after which a broker is fenced
    grace_ms: int = 500  # time to come back after a broken stream
    stall_ms_min: int = 500  # ticks further apart than this show a stall of this process
    shutdown_wait_ms: int = 1_000  # time for other brokers to learn of moved leaderships
    flap_window_ms: int = 60_000
    flap_delay_ms_max: int = 30_000
    report_wait_ms: int = 2_000  # wait for reported log ends in an unclean election
    batch_bytes_max: int = 1 << 20  # size of one entry of the quorum's log
    partitions_per_batch_max: int = 500
    partitions_looked_at_max: int = 5_000  # in one turn of the loop, about 60 ms
    registration_changes_max: int = 10_000  # partitions that one registration changes in its batch
    partitions_per_request_max: int = 10_000
    partitions_max: int = 200_000
    initial_configs: tuple[tuple[str, str], ...] = field(
        default=()
    )  # of all brokers, at the first start
    initial_features: FeatureLevels = INITIAL_LEVELS
    voters: tuple[ControllerId, ...] = ()  # all of them must support a level before it is raised
