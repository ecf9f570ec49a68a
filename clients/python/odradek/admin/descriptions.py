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
    "TopicDescription",
    "TopicOutcome",
    "Voter",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be. -1 partitions or replicas: the brokers' default.

    `assignments`, one list of broker ids per partition (preferred leader first), goes without counts.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """What became of one topic of a call that took several. `error` None: done."""

    name: str
    topic_id: bytes = b""
    partitions: int = -1
    replication_factor: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic and its partitions, by index."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[Partition, ...]


class ConfigResourceType(IntEnum):
    """What a config belongs to."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a config's value comes from; Kafka's numbers."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3
    STATIC = 4
    BUILT_IN = 5
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    """A topic's name, a broker's id ("" for the default of all brokers), or a group's."""

    type: ConfigResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ConfigResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.type.name.lower()} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One config. `value` is None where it is a secret, or has none."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """What became of one partition. `offset` is the new log start where records were deleted."""

    partition: TopicPartition
    offset: int = -1
    error: OdradekError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDescription:
    """Where a broker listens."""

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
    """One data directory of a broker. Sizes in bytes, None where unknown."""

    broker_id: int
    path: str = ""
    offline_reason: str = ""
    """Why nothing is served from it until the broker restarts."""
    full_reason: str = ""
    """Why nothing is written to it for now."""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    partition_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Size of each partition's log; empty unless asked for."""
    stray_count: int = 0
    """Logs that the broker put aside because the metadata does not claim them."""
    stray_bytes: int = 0
    error: OdradekError | None = None
    """Why the broker did not describe its directories; then nothing else is known."""

    @property
    def problem(self) -> str:
        """What is wrong with it, in words; "" if nothing is."""
        return self.offline_reason or self.full_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """One feature of the cluster: the level in use, and what its members support."""

    name: str
    level: int  # 0: off
    level_min: int  # that the active controller supports
    level_max: int
    level_common: int  # the highest that every broker and controller supports
    held_back_by: tuple[str, ...]  # members that do not support level_max, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One member of the metadata quorum; None: not known to who answered."""

    controller_id: int
    endpoint: str
    log_end: int | None
    heard_ms_ago: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum as its leader sees it, or another member while there is none (leader -1)."""

    leader_id: int
    term: int
    commit_offset: int
    answered_by: int
    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list; `type` is classic or consumer (KIP-848)."""

    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member and what it owns; of classic groups the assignment is not known to the coordinator."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, its members, and the broker that coordinates it."""

    group: str
    state: str
    type: str
    protocol: str
    epoch: int
    coordinator_id: int
    members: tuple[GroupMember, ...]
