"""Values that the admin takes and returns: topics, configs, partitions, groups, brokers, the cluster."""

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

    `assignments` has a list of broker ids for each partition, the preferred leader first. If it is given, leave both
    numbers at -1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """What a call about several topics did to one of them; `error` is None if it succeeded."""

    name: str
    topic_id: bytes = b""
    partitions: int = -1
    replication_factor: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions in the order of their indexes."""

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
    """The source of a config's value, with Kafka's numbers."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3
    STATIC = 4
    BUILT_IN = 5
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    """A resource that has configs: a topic or group, named by its name, or a broker, named by its id; "" stands for the
    defaults of all brokers.
    """

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ConfigResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.type.name.lower()} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One config with its value as text. `value` is None if the config is a secret, or has no value."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of a call for one partition. After `delete_records`, `offset` is the new log start offset."""

    partition: TopicPartition
    offset: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A move of one partition that is in progress.

    The move ends when all replicas of `target` are in sync; then it is no longer listed.
    """

    partition: TopicPartition
    leader_id: int
    """The broker that leads the partition; -1: it has no leader, so nothing is copied."""
    replicas: tuple[int, ...]
    """Ids of all brokers that have a replica now, `adding` and `removing` included."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    total_bytes: int | None = None
    """How many bytes the replicas in `adding` will have in the end; None if sizes were not requested, or
    are not known.
    """
    copied_bytes: int | None = None
    """How many bytes the replicas in `adding` have at present; None as for `total_bytes`."""

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
    """One broker as the active controller knows it, fenced or not."""

    broker_id: int
    broker_epoch: int
    listeners: tuple[ListenerDescription, ...]
    rack: str
    is_fenced: bool
    is_in_shutdown: bool
    leader_count: int
    host: str = ""  # empty: the broker is taken to be alone on its host


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster as its active controller knows it."""

    cluster_id: str
    active_controller_id: int
    controller_epoch: int
    controller_endpoints: tuple[str, ...]
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One data directory of a broker. Sizes are in bytes; None if they are not known."""

    broker_id: int
    path: str = ""
    offline_reason: str = ""
    """Why the directory is offline, which lasts until the broker restarts; "" if it is online."""
    full_reason: str = ""
    """Why the broker does not write to the directory at present; "" if it does."""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    partition_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The size of each partition's log; empty unless it was requested."""
    stray_count: int = 0
    """Number of stray logs, which the broker keeps aside because the metadata does not assign their
    partitions to it.
    """
    stray_bytes: int = 0
    error: OdradekError | None = None
    """Why the broker did not describe its directories; then all other fields are empty."""

    @property
    def problem(self) -> str:
        """The directory's problem in words; "" if it has none."""
        return self.offline_reason or self.full_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """One feature of the cluster: the level in use, and the levels that brokers and controllers support."""

    name: str
    level: int  # 0: the feature is off
    level_min: int  # lowest level that the active controller supports
    level_max: int
    level_common: int  # highest level that all brokers and controllers support
    # The brokers and controllers that do not support level_max, in words.
    held_back_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter of the metadata quorum. A field is None if the controller that responded does not know the value."""

    controller_id: int
    endpoint: str
    log_end: int | None
    heard_ms_ago: int | None
    host: str = ""  # empty: the host is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum as its leader sees it.

    If the quorum has no leader (`leader_id` is -1), this is the view of the voter `answered_by`.
    """

    leader_id: int
    term: int
    commit_offset: int
    answered_by: int
    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """An entry of the list of groups. `type` is classic or consumer (KIP-848)."""

    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, with its assigned partitions.

    `assignment` is empty in a classic group, whose coordinator does not know the assignment.
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
