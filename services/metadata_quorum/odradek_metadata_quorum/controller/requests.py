"""The requests that the controller decides and their answers, as typed values without a wire."""

from __future__ import annotations

from dataclasses import dataclass

from odradek_metadata_quorum.controller.decision import GOOD, Outcome
from odradek_protocol.identity import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    ProducerId,
    TopicId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import FeatureLevels
from odradek_protocol.metadata.records import Endpoint, RestartClass

# --- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """A broker's life begins."""

    cluster_id: str
    broker_id: BrokerId
    incarnation_id: IncarnationId
    directory_ids: tuple[DirectoryId, ...]
    restart_class: RestartClass
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    features: FeatureLevels = ()  # the highest levels it supports
    feature_minima: FeatureLevels = ()
    lost_partitions: frozenset[TopicIdPartition] = frozenset()
    metadata_incarnation_id: MetadataIncarnationId | None = None  # of the log it has followed
    controller_ids: frozenset[ControllerId] = frozenset()  # that its settings name; empty: not told


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResponse:
    """The registration's number, if it was accepted."""

    outcome: Outcome = GOOD
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRequest:
    """A voter says which feature levels its program supports, again and again while it lives."""

    controller_id: ControllerId
    incarnation_id: IncarnationId
    endpoints: tuple[Endpoint, ...] = ()
    features: FeatureLevels = ()
    feature_minima: FeatureLevels = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A broker lives, and how; sent to every controller."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    seq: int = 0
    image_offset: int = -1
    want_fence: bool = False
    want_shutdown: bool = False
    cannot_write: bool = False
    offline_directory_ids: tuple[DirectoryId, ...] = ()
    broken_partitions: frozenset[TopicIdPartition] = frozenset()  # a bug ended the replica there


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """What the broker is to know; only an active controller's answer renews its lease."""

    error: ErrorCode = ErrorCode.NONE
    seq: int = 0
    is_active: bool = False
    is_fenced: bool = True
    may_shutdown: bool = False
    controller_epoch: int = 0
    report_log_ends: tuple[TopicIdPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """What one replica still holds."""

    partition: TopicIdPartition
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLogEndsRequest:
    """Log ends that the controller asked a broker for (R22)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[LogEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker wants producer ids."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block of producer ids that nobody else has."""

    error: ErrorCode = ErrorCode.NONE
    producer_id_start: ProducerId = ProducerId(-1)  # noqa: RUF009  # a NewType costs nothing
    producer_id_count: int = 0


# --- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """A leader's proposal for one partition; each ISR member with its broker epoch (KIP-903)."""

    partition: TopicIdPartition
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """A leader's proposals."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[AlterPartitionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResult:
    """What became of a proposal; the new epoch is true only once the image says so."""

    partition: TopicIdPartition
    error: ErrorCode = ErrorCode.NONE
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """In the order of the request."""

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[AlterPartitionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """Preferred or unclean elections by command; no partitions: all of them."""

    unclean: bool = False
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition's new replicas, preferred leader first; None cancels a move under way."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What became of one partition of a command."""

    partition: TopicPartition
    outcome: Outcome = GOOD


# --- topics


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be; -1 means the cluster's default, or as the assignments say."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[BrokerId, ...], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """Topics to create: a client's whole request, or a piece of it that is decided by itself.

    `partitions_elsewhere` are the partitions that the other pieces create, and `repeated_names` the names
    that the whole request has more than once.
    """

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    partitions_elsewhere: int = 0
    repeated_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """How many partitions a topic shall have in all."""

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
    """What became of one topic."""

    name: TopicName
    topic_id: TopicId = NO_TOPIC_ID
    outcome: Outcome = GOOD
    partition_count: int = -1
    replication_factor: int = -1
