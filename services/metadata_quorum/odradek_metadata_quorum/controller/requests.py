"""The controller's settings, requests, responses, decisions and source of random numbers, independent of gRPC."""

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
    """A response, and the records that must be committed as one batch before the response may be sent.

    The decision may depend on earlier batches that are not committed yet, so the response must wait for them even if
    the decision has no records. `payload` is the encoded batch for the quorum; it is empty if there are no records.

    `offset` is the lowest metadata offset at which an image has the state that the response reports: the offset of the
    decision's batch or, if there are no records, of the batch before. So if a client repeats a request because the
    first response was lost, it can read the result from this offset on, although the repetition changes nothing. On a
    standby the offset is -1.
    """

    response: Response
    records: tuple[MetadataRecord, ...] = ()
    payload: bytes = b""
    offset: MetadataOffset = _NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one item of a request: an error code, and a message that tells users the cause and the remedy."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""

    def __post_init__(self) -> None:
        # The message may contain text of the client, and strings of older Kafka responses have at most 32,767 bytes.
        if len(self.message) > MESSAGE_CHARACTERS_MAX:
            object.__setattr__(self, "message", f"{self.message[:MESSAGE_CHARACTERS_MAX]}...")

    @property
    def is_good(self) -> bool:
        """Whether there is no error."""
        return self.error is ErrorCode.NONE


GOOD = Outcome()


class BatchTooLarge(Exception):
    """A request needs more metadata than fits into one batch. The request has no effect."""


class Draws(Protocol):
    """The source of random numbers for decisions. `random.Random` implements this interface."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""

    def randrange(self, stop: int, /) -> int:
        """Return a random integer from 0 up to but not including `stop`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of the controller. Durations are measured with the caller's monotonic clock."""

    cluster_id: str
    session_ms: int = 3_000  # a broker without a heartbeat for this long is fenced
    grace_ms: int = 500  # time in which a broker may open a new heartbeat stream after one broke
    stall_ms_min: int = 500  # a longer time between two ticks counts as a stall of this process
    # The longest wait until all live brokers have replayed the changes that moved leaderships.
    shutdown_wait_ms: int = 1_000
    flap_window_ms: int = 60_000  # time in which repeated fencing of a broker delays its unfencing
    flap_delay_ms_max: int = 30_000  # longest delay of the unfencing of a broker
    report_wait_ms: int = 2_000  # longest wait for log end offsets in an unclean election
    batch_bytes_max: int = 1 << 20  # largest entry of the quorum's log
    partitions_per_batch_max: int = 500
    # Most partitions that are examined in one step of the event loop, which takes about 60 ms.
    partitions_looked_at_max: int = 5_000
    # Most partitions that one registration, or one change of min.insync.replicas, changes in its batch.
    registration_changes_max: int = 10_000
    partitions_per_request_max: int = 10_000
    partitions_max: int = 200_000
    # Broker configs that are set as defaults of all brokers at the first start of a cluster.
    initial_configs: tuple[tuple[str, str], ...] = field(default=())
    initial_features: FeatureLevels = INITIAL_LEVELS
    voters: tuple[ControllerId, ...] = ()  # a feature level is raised only if all voters support it


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """A broker's request to be registered. `ControllerService.Register` describes the fields."""

    cluster_id: str
    broker_id: BrokerId
    incarnation_id: IncarnationId
    directory_ids: tuple[DirectoryId, ...]
    restart_class: RestartClass
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    host_id: str | None = None
    features: FeatureLevels = ()  # the highest levels that the broker's program supports
    feature_minima: FeatureLevels = ()
    lost_partitions: frozenset[TopicIdPartition] = frozenset()
    # The id of the metadata log that the broker has followed.
    metadata_incarnation_id: MetadataIncarnationId | None = None
    # The controllers in the broker's settings. Brokers of older releases send none.
    controller_ids: frozenset[ControllerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResponse:
    """The result of a broker's registration. The broker epoch is -1 if the registration was refused."""

    outcome: Outcome = GOOD
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRequest:
    """A voter's request to be registered with the feature levels of its release. Voters repeat it every few seconds."""

    controller_id: ControllerId
    incarnation_id: IncarnationId
    endpoints: tuple[Endpoint, ...] = ()
    features: FeatureLevels = ()
    feature_minima: FeatureLevels = ()
    host_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A heartbeat, which a broker sends to every controller."""

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
    """The response to a heartbeat. Only the response of the active controller renews the broker's lease."""

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
    """Log end offsets that a broker reports because the controller requested them (rule R22)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[LogEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker's request for a block of producer ids."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block of producer ids that belongs to the requesting broker only."""

    error: ErrorCode = ErrorCode.NONE
    producer_id_start: ProducerId = ProducerId(-1)  # noqa: RUF009  # a NewType is only an int
    producer_id_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """A leader's proposal of an ISR for one partition, with the broker epoch of each member (KIP-903)."""

    partition: TopicIdPartition
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """ISR proposals of one broker for partitions that it leads."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResult:
    """The result of one ISR proposal. The leader adopts the change only when its own image has it."""

    partition: TopicIdPartition
    error: ErrorCode = ErrorCode.NONE
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """The results of the ISR proposals, in the order of the request."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[AlterPartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """A user's request for preferred or unclean elections. Empty `partitions` means all partitions."""

    unclean: bool = False
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A user's request to move a partition. `replicas` has the preferred leader first; None cancels a move."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result for one partition of a user's request."""

    partition: TopicPartition
    outcome: Outcome = GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. A count of -1 means the count in `assignments` or, if they are empty, the
    cluster's default.
    """

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[BrokerId, ...], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """Topics to create: a client's whole request, or one piece of a large request, which is decided in pieces.

    `partitions_elsewhere` is the number of partitions that the other pieces create. `repeated_names` has the names that
    occur more than once in the whole request.
    """

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    partitions_elsewhere: int = 0
    repeated_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """A request to add partitions to a topic. `total_count` includes the existing partitions."""

    name: str
    total_count: int
    assignments: tuple[tuple[BrokerId, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """Partitions to add to topics: a client's whole request, or one piece of a large request, as
    `CreateTopicsRequest` describes.
    """

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    partitions_elsewhere: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """Topics to delete, by name and by id."""

    names: tuple[str, ...] = ()
    topic_ids: tuple[TopicId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The result for one topic of a request. Counts are -1 if they are unknown or the request failed."""

    name: TopicName
    topic_id: TopicId = NO_TOPIC_ID
    outcome: Outcome = GOOD
    partition_count: int = -1
    replication_factor: int = -1
