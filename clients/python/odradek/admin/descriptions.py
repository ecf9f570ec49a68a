"""Topics, configs, partitions, groups, brokers and the cluster: arguments and results of `Admin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from odradek.cluster.metadata_cache import Broker, Partition
from odradek.errors import OdradekError
from odradek.partitions import TopicPartition

__all__ = [
    "Broker",
    "BrokerDescription",
    "ClusterDescription",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigValue",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "ListenerDescription",
    "LogDirDescription",
    "NewTopic",
    "Partition",
    "PartitionOutcome",
    "QuorumDescription",
    "Reassignment",
    "TopicDescription",
    "TopicOutcome",
    "Voter",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 for the number of partitions or replicas stands for the cluster's default.

    `assignments` has a list of broker ids for each partition, the preferred leader first. If `assignments` is given,
    both numbers must be -1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """The outcome of a call for one topic. `error` is None if the call succeeded for this topic."""

    name: str
    topic_id: bytes = b""
    partitions: int = -1
    replication_factor: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, sorted by partition index."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[Partition, ...]


class ConfigResourceType(IntEnum):
    """The type of a resource that has configs."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where the value of a config is set. The values are Kafka's numbers."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3
    STATIC = 4
    BUILT_IN = 5
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    """A resource that has configs: a topic or group with its name, or a broker with its id as the name. For a broker,
    the name "" stands for all brokers.
    """

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ConfigResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.type.name.lower()} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """The value of one config, as text. `value` is None if the config is secret, or has no value."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of a call for one partition; `error` is None if it succeeded. After `delete_records`, `offset` is the
    new log start offset.
    """

    partition: TopicPartition
    offset: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A move of one partition that is in progress.

    The move ends when all replicas in `target` are in sync. After that, `list_reassignments` no longer returns it.
    """

    partition: TopicPartition
    leader_id: int
    """The broker that leads the partition. -1: the partition has no leader, so nothing is copied."""
    replicas: tuple[int, ...]
    """The ids of all brokers that have a replica now, including those in `adding` and `removing`."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    total_bytes: int | None = None
    """How many bytes the replicas in `adding` will have at the end; None if sizes were not requested or are not known.
    """
    copied_bytes: int | None = None
    """How many bytes the replicas in `adding` have now; None if sizes were not requested or are not known."""

    @property
    def target(self) -> tuple[int, ...]:
        """The brokers that will have a replica when the move has ended, the preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDescription:
    """One listener of a broker."""

    name: str
    host: str
    port: int
    security_protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One registered broker, as the active controller describes it."""

    broker_id: int
    broker_epoch: int
    listeners: tuple[ListenerDescription, ...]
    rack: str
    is_fenced: bool
    is_in_shutdown: bool
    leader_count: int
    host: str = ""  # Empty: the broker is assumed to be alone on its host.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster, as the active controller describes it."""

    cluster_id: str
    active_controller_id: int
    controller_epoch: int
    controller_endpoints: tuple[str, ...]
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One data directory of a broker. Sizes are in bytes, and None if they are not known."""

    broker_id: int
    path: str = ""
    offline_reason: str = ""
    """Why the directory is offline; "" if it is online. An offline directory stays offline until the broker restarts.
    """
    full_reason: str = ""
    """Why the broker does not write to the directory at present; "" if the broker can write."""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    partition_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The size of each partition's log; empty unless the call had `include_partitions`."""
    stray_count: int = 0
    """The number of stray logs. The broker does not use a stray log, because the metadata assigns no such replica to
    the broker.
    """
    stray_bytes: int = 0
    error: OdradekError | None = None
    """Why the broker did not describe its directories. If this is set, no other field but `broker_id` is set."""

    @property
    def problem(self) -> str:
        """Why the directory is offline or full; "" if it is neither."""
        return self.offline_reason or self.full_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """One feature of the cluster: the level in use, and the levels that brokers and controllers support."""

    name: str
    level: int  # 0: the feature is off.
    level_min: int  # The lowest level that the active controller supports.
    level_max: int  # The highest level that the active controller supports.
    level_common: int  # The highest level that all brokers and controllers support.
    # Names of the brokers and controllers that do not support level_max.
    held_back_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter of the metadata quorum. A field is None if the responding controller does not know the value."""

    controller_id: int
    endpoint: str
    log_end: int | None
    heard_ms_ago: int | None
    host: str = ""  # Empty: the host is not known.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum, as its leader describes it.

    If the quorum has no leader (`leader_id` is -1), this is the state of the voter `answered_by`.
    """

    leader_id: int
    term: int
    commit_offset: int
    answered_by: int
    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group in the list of groups. `type` is classic or consumer (KIP-848)."""

    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, with its assigned partitions.

    `assignment` is empty in a classic group, because the coordinator of such a group does not know the assignments.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members and its coordinator."""

    group: str
    state: str
    type: str
    protocol: str
    epoch: int
    coordinator_id: int
    members: tuple[GroupMember, ...]
