"""Values that the controller's handlers use, independent of the protocol: settings, requests, responses, decisions
and random draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from odradek_protocol.identity import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    MetadataOffset,
    ProducerId,
    TopicId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import INITIAL_LEVELS, FeatureLevels
from odradek_protocol.metadata.records import Endpoint, MetadataRecord, RestartClass

Response = TypeVar("Response", covariant=True)
MESSAGE_CHARACTERS_MAX: Final = 1_000
_NO_OFFSET: Final = MetadataOffset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Response]):
    """A response that may be sent once `records` are committed, as one batch.

    If there are no records, nothing has to be committed. But the decision may depend on batches that are not committed
    yet, so the response waits for those. `payload` is the encoded batch that is proposed to the quorum; it is empty if
    there are no records.

    `offset` is the first metadata offset at which an image includes what the response reports: that of the decision's
    own batch, or, if there are no records, of the last batch before it. So the result of a request that is repeated
    because its first response was lost can be read from this offset on, too, although the repetition changes nothing.
    The offset in a standby's response is -1.
    """

    response: Response
    records: tuple[MetadataRecord, ...] = ()
    payload: bytes = b""
    offset: MetadataOffset = _NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one item of a request: an error code, and a message for users that says what to do."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""

    def __post_init__(self) -> None:
        # The message may contain text of the client, and older Kafka responses hold no string above 32,767 bytes.
        if len(self.message) > MESSAGE_CHARACTERS_MAX:
            object.__setattr__(self, "message", f"{self.message[:MESSAGE_CHARACTERS_MAX]}...")

    @property
    def is_good(self) -> bool:
        """Whether there is no error."""
        return self.error is ErrorCode.NONE


GOOD = Outcome()


class BatchTooLarge(Exception):
    """A request needs more metadata than fits into one atomic batch; it changed nothing."""


class Draws(Protocol):
    """The source of random numbers for decisions; a `random.Random` is one."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""

    def randrange(self, stop: int, /) -> int:
        """Return a random integer from 0 up to but not including `stop`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The controller's settings; times in ms of the caller's monotonic clock."""

    cluster_id: str
    session_ms: int = 3_000  # silence after which a broker is fenced
    grace_ms: int = 500  # time to come back after a broken stream
    stall_ms_min: int = 500  # a longer time between two ticks shows that this process was stalled
    shutdown_wait_ms: int = 1_000  # time in which other brokers learn of moved leaderships
    flap_window_ms: int = 60_000
    flap_delay_ms_max: int = 30_000
    report_wait_ms: int = 2_000  # longest wait for log end offsets in an unclean election
    batch_bytes_max: int = 1 << 20  # largest entry of the quorum's log
    partitions_per_batch_max: int = 500
    # Most partitions checked in one turn of the loop: about 60 ms.
    partitions_looked_at_max: int = 5_000
    # Most partitions that one registration, or one change of min.insync.replicas, changes in its batch.
    registration_changes_max: int = 10_000
    partitions_per_request_max: int = 10_000
    partitions_max: int = 200_000
    # Broker configs that a new cluster starts with, as defaults of all brokers.
    initial_configs: tuple[tuple[str, str], ...] = field(default=())
    initial_features: FeatureLevels = INITIAL_LEVELS
    voters: tuple[ControllerId, ...] = ()  # all of them must support a level before it is raised


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """A broker's registration."""

    cluster_id: str
    broker_id: BrokerId
    incarnation_id: IncarnationId
    directory_ids: tuple[DirectoryId, ...]
    restart_class: RestartClass
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    host_id: str | None = None
    features: FeatureLevels = ()  # the highest levels that the broker supports
    feature_minima: FeatureLevels = ()
    lost_partitions: frozenset[TopicIdPartition] = frozenset()
    # The id of the metadata log that the broker has followed.
    metadata_incarnation_id: MetadataIncarnationId | None = None
    # The controllers in the broker's settings; an older broker sends none.
    controller_ids: frozenset[ControllerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResponse:
    """The broker epoch if the registration was accepted, and the error code."""

    outcome: Outcome = GOOD
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRequest:
    """A voter's registration with the feature levels of its release. The voter repeats it as long as it runs."""

    controller_id: ControllerId
    incarnation_id: IncarnationId
    endpoints: tuple[Endpoint, ...] = ()
    features: FeatureLevels = ()
    feature_minima: FeatureLevels = ()
    host_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A broker's heartbeat, sent to every controller."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    seq: int = 0
    image_offset: int = -1
    want_fence: bool = False
    want_shutdown: bool = False
    cannot_write: bool = False
    offline_directory_ids: tuple[DirectoryId, ...] = ()
    # Partitions whose replica on this broker failed because of an internal error.
    broken_partitions: frozenset[TopicIdPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The response to a heartbeat: the state of the broker. Only an active controller's response renews the lease."""

    error: ErrorCode = ErrorCode.NONE
    seq: int = 0
    is_active: bool = False
    is_fenced: bool = True
    may_shutdown: bool = False
    controller_epoch: int = 0
    report_log_ends: tuple[TopicIdPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The log end offset of one replica, and the leader epoch of its last record."""

    partition: TopicIdPartition
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLogEndsRequest:
    """Log end offsets that a broker reports at the controller's request (rule R22)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[LogEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker's request for producer ids."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block of producer ids, which no other broker gets."""

    error: ErrorCode = ErrorCode.NONE
    producer_id_start: ProducerId = ProducerId(-1)  # noqa: RUF009  # a NewType costs nothing
    producer_id_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """A leader's proposal for one partition. It has the broker epoch of each proposed ISR member (KIP-903)."""

    partition: TopicIdPartition
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """The ISR proposals of the partition leaders on one broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResult:
    """The result of one proposal. The leader adopts the new partition epoch only when its image shows it."""

    partition: TopicIdPartition
    error: ErrorCode = ErrorCode.NONE
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """The results of the proposals, in the order of the request."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[AlterPartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """A user's request for preferred or unclean elections. No partitions means all partitions."""

    unclean: bool = False
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition's new replicas, the preferred leader first; None cancels the move in progress."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of a user's request for one partition."""

    partition: TopicPartition
    outcome: Outcome = GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. A count of -1 stands for the cluster's default, or for the count that the assignments have."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[BrokerId, ...], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """Topics to create: a client's whole request, or a piece of it that is decided separately.

    `partitions_elsewhere` are the partitions that the other pieces create, and `repeated_names` the names
    that the whole request has more than once.
    """

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    partitions_elsewhere: int = 0
    repeated_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """The number of partitions that a topic will have, including the existing ones."""

    name: str
    total_count: int
    assignments: tuple[tuple[BrokerId, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """Partitions to add: a client's whole request, or a piece of it (`CreateTopicsRequest`)."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    partitions_elsewhere: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """Topics to delete, by name or by id."""

    names: tuple[str, ...] = ()
    topic_ids: tuple[TopicId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The result for one topic."""

    name: TopicName
    topic_id: TopicId = NO_TOPIC_ID
    outcome: Outcome = GOOD
    partition_count: int = -1
    replication_factor: int = -1
