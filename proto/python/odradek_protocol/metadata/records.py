"""The metadata records. Each change of the cluster's metadata is a record of one of these types.

The active controller creates records, and the quorum commits them in atomic batches: one batch is one entry of the Raft
log. Every controller and broker replays all records, in order, into its `MetadataImage`. The record types follow
KRaft's (KIP-500, KIP-631, KIP-966).

A record has the new values, not the reason of the change. A field of a change that is None keeps its value. Three
numbers are not in the records, because replaying computes the same numbers everywhere:

- The epoch of a broker is the offset of the log entry that has its `RegisterBroker` record.
- `partition_epoch` rises by one with each `PartitionChange`.
- `leader_epoch` rises by one with each `PartitionChange` that sets `leader`, even to the same broker.

Compatibility: new fields are appended, with defaults; fields are never reordered or reused. An appended field makes a
new version of its record. `SINCE` maps the field to that version. `LEVELS` has, for each version, the lowest
`metadata.version` at which it may be written. A newer program uses the default of a field that is missing. An older
program refuses a version, field or type that it does not know: if the program ignored it, its process would have
another image than the other processes. While `metadata.version` is a level that an older program supports, no record is
written that this older program would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from odradek_protocol.identity import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)


class RestartClass(IntEnum):
    """How the previous process of a broker ended. From this the controller concludes whether the broker
    may have lost bytes."""

    CLEAN = 1  # by a controlled shutdown, which left a marker file with the broker epoch
    PROCESS = 2  # the process died, but the page cache survived
    POWER = 3  # any other end: bytes that were not synced may be lost


class ConfigResourceType(IntEnum):
    """The type of a resource that has configs, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4  # the resource with an empty name has the defaults of all brokers
    GROUP = 32


class ScramMechanism(IntEnum):
    """The mechanism of a SCRAM credential, with Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2


class Endpoint(
    Struct, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """The address of one listener of a broker or controller. `name` is the listener's name, such as GRPC or
    REPLICATION.
    """

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """The endpoint as host:port; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_grpc_listener(name: str) -> bool:
    """Return whether a listener with this name (GRPC, GRPC_EXTERNAL, ...) speaks gRPC to clients."""
    return name == "GRPC" or name.startswith("GRPC_")


def grpc_addresses(endpoints: Iterable[Endpoint]) -> list[str]:
    """Return the addresses of the listeners that speak gRPC to clients, as host:port."""
    return [endpoint.address for endpoint in endpoints if is_grpc_listener(endpoint.name)]


class FeatureLevel(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The cluster uses the feature `name` at this level from now on. Level 0 turns the feature off."""

    TYPE_ID: ClassVar[int] = 1
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    name: str
    level: int


class RegisterBroker(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A broker is registered, and is fenced at first. The broker epoch is the offset of the log entry with this record.

    `broker_epoch` is written only in snapshots, where the offset of the entry is not known. `features` has the highest
    levels that the broker's program supports, `feature_minima` the lowest levels that are above 0. `host_id` names the
    machine on which the broker runs. A broker without it counts as the only broker on its machine.
    """

    TYPE_ID: ClassVar[int] = 2
    LEVELS: ClassVar[tuple[int, ...]] = (1, 2, 3)
    SINCE: ClassVar[dict[str, int]] = {"feature_minima": 1, "host_id": 2}
    broker_id: BrokerId
    incarnation_id: IncarnationId
    directory_ids: tuple[DirectoryId, ...]
    restart_class: RestartClass
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: tuple[tuple[str, int], ...] = ()
    fenced: bool = True
    broker_epoch: BrokerEpoch | None = None
    feature_minima: tuple[tuple[str, int], ...] = ()
    host_id: str | None = None


class BrokerRegistrationChange(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A broker is fenced or unfenced, begins or ends a controlled shutdown, or reports failed data directories. A field
    that is None keeps its value.
    """

    TYPE_ID: ClassVar[int] = 3
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_shutdown: bool | None = None
    offline_directory_ids: tuple[DirectoryId, ...] | None = None


class UnregisterBroker(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The registration of a broker is removed by a command, because the broker will not return."""

    TYPE_ID: ClassVar[int] = 4
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class Topic(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A topic is created. `Partition` records for its partitions follow in the same batch."""

    TYPE_ID: ClassVar[int] = 5
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId
    name: TopicName


class Partition(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A partition is created with this state. Its epochs are 0, except in a snapshot.

    `isr` has the in-sync replicas. `elr` has the eligible leader replicas (KIP-966): they left the ISR while it had
    less than min.insync.replicas members, and still have all committed records. `lost` has replicas that were in the
    ISR or ELR when they lost bytes (KIP-966's last known ELR, as a set). A lost replica is not elected cleanly until it
    is in the ISR again. If all members of the ISR and ELR are lost, the controller elects one of them by their log
    ends, which all of them must report first. `recovering` means that the leader was elected uncleanly and has not yet
    reported the end of its recovery.
    """

    TYPE_ID: ClassVar[int] = 6
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    elr: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    leader_epoch: int = 0
    partition_epoch: int = 0
    recovering: bool = False
    lost: tuple[BrokerId, ...] = ()


class PartitionChange(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A partition changes. A field that is None keeps its value. The leader NO_BROKER means that there is no leader."""

    TYPE_ID: ClassVar[int] = 7
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId
    partition: PartitionIndex
    leader: BrokerId | None = None
    isr: tuple[BrokerId, ...] | None = None
    elr: tuple[BrokerId, ...] | None = None
    replicas: tuple[BrokerId, ...] | None = None
    adding: tuple[BrokerId, ...] | None = None
    removing: tuple[BrokerId, ...] | None = None
    recovering: bool | None = None
    lost: tuple[BrokerId, ...] | None = None


class RemoveTopic(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A topic and its partitions are deleted. A new topic may have the same name."""

    TYPE_ID: ClassVar[int] = 8
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId


class Config(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A config of a resource is set. If `value` is None, the config is deleted, and its default applies."""

    TYPE_ID: ClassVar[int] = 9
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str | None = None


class ProducerIds(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A block of producer ids is allocated to a broker. The next block begins at `next_producer_id`."""

    TYPE_ID: ClassVar[int] = 10
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: ProducerId


class ClientQuota(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A client quota of an entity is set (KIP-546). If `value` is None, the quota is removed."""

    TYPE_ID: ClassVar[int] = 11
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    # Sorted pairs of a type (user, client-id or ip) and a name. None is the default entity of the type.
    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None = None

    def __post_init__(self) -> None:
        # Equal records must have equal bytes, and older releases refuse an integer here.
        if type(self.value) is int:
            force_setattr(self, "value", float(self.value))


class AccessControlEntry(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """An access control entry is created. Its numbers are those of Kafka's protocol (`odradek_protocol.access`)."""

    TYPE_ID: ClassVar[int] = 12
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    acl_id: bytes  # 16 random bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class RemoveAccessControlEntry(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """An access control entry is deleted."""

    TYPE_ID: ClassVar[int] = 13
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    acl_id: bytes


class UserScramCredential(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A SCRAM credential of a user is set (RFC 5802). It does not contain the password."""

    TYPE_ID: ClassVar[int] = 14
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    user: str
    mechanism: ScramMechanism
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        # The default representation would show keys wherever a record is logged.
        return f"UserScramCredential(user={self.user!r}, mechanism={self.mechanism.name}, <hidden>)"


class RemoveUserScramCredential(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A SCRAM credential of a user is deleted, so the user can no longer log in with this mechanism."""

    TYPE_ID: ClassVar[int] = 15
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    user: str
    mechanism: ScramMechanism


class NoOp(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A record without effect. Its commit proves that the controller that proposed it is active."""

    TYPE_ID: ClassVar[int] = 16
    LEVELS: ClassVar[tuple[int, ...]] = (1,)


class MetadataIncarnation(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The metadata log gets its incarnation id: 16 random bytes, written once, in the first batch of the log.

    If the controllers lose their data directories and begin a new log, the new log has another incarnation id, and
    brokers that followed the lost log refuse it. A log that an older program began has no incarnation id until
    `metadata.version` is raised.
    """

    TYPE_ID: ClassVar[int] = 17
    LEVELS: ClassVar[tuple[int, ...]] = (2,)
    incarnation_id: MetadataIncarnationId


class RegisterController(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A controller is registered, with the feature levels that its program supports. Every member of the quorum is
    registered, whether it is the active controller or not.
    """

    TYPE_ID: ClassVar[int] = 18
    LEVELS: ClassVar[tuple[int, ...]] = (2, 3)
    SINCE: ClassVar[dict[str, int]] = {"host_id": 1}
    controller_id: ControllerId
    incarnation_id: IncarnationId
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[tuple[str, int], ...] = ()
    feature_minima: tuple[tuple[str, int], ...] = ()
    host_id: str | None = None


MetadataRecord = (
    FeatureLevel
    | RegisterBroker
    | BrokerRegistrationChange
    | UnregisterBroker
    | Topic
    | Partition
    | PartitionChange
    | RemoveTopic
    | Config
    | ProducerIds
    | ClientQuota
    | AccessControlEntry
    | RemoveAccessControlEntry
    | UserScramCredential
    | RemoveUserScramCredential
    | NoOp
    | MetadataIncarnation
    | RegisterController
)

RECORD_TYPES: Final[tuple[type[MetadataRecord], ...]] = (
    FeatureLevel,
    RegisterBroker,
    BrokerRegistrationChange,
    UnregisterBroker,
    Topic,
    Partition,
    PartitionChange,
    RemoveTopic,
    Config,
    ProducerIds,
    ClientQuota,
    AccessControlEntry,
    RemoveAccessControlEntry,
    UserScramCredential,
    RemoveUserScramCredential,
    NoOp,
    MetadataIncarnation,
    RegisterController,
)

NO_LEADER: Final = NO_BROKER


class MetadataBatch(Struct, frozen=True, kw_only=True):
    """Records that take effect together: the payload of one entry of the Raft log.

    `controller_epoch` is the Raft term of the controller that created the records. Every process drops a batch whose
    epoch is not the term of its log entry. So a proposal of a deposed controller that was appended late has no effect.
    """

    controller_epoch: int
    records: tuple[MetadataRecord, ...]


class MetadataDecodeError(ValueError):
    """The bytes are not metadata in a format that this program can read."""


class NewerProgramNeeded(MetadataDecodeError):
    """The metadata is intact, but uses features of a newer program."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"a newer program is needed: {detail}. The metadata is intact; start the version of the"
            " program that the other processes of the cluster run, or a later version"
        )
