"""The metadata records: every change of a cluster's metadata is one of these, and nothing else.

The active controller decides them, the quorum commits them in atomic batches (one batch is one
entry of the Raft log), and every controller and broker replays them, in order, into its
`MetadataImage`. The set follows KRaft's (KIP-500, KIP-631, KIP-966), with names where KRaft
has numbers.

A record says what *is* from now on, not why; a field that is left out of a change (None) keeps its
value. Three numbers are not written, because replaying computes the same ones everywhere:

- a broker's epoch is the offset of the entry that holds its `RegisterBroker`;
- `partition_epoch` rises by one with each `PartitionChange`;
- `leader_epoch` rises by one with each `PartitionChange` that sets `leader`, even to the same one.

Evolution: fields are appended, with defaults, and never reordered or reused. Each appended field
begins a new version of its record (`SINCE` has the version by field), and `LEVELS` says, by version,
from which `metadata.version` on it may be written. A newer reader takes defaults for what is
missing. An older reader refuses a version, a field or a type that it does not know, because a member that
ignored it would have another image than the other members. While the level is low enough, it never receives one.
"""

from __future__ import annotations

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
    """How the last process of a broker ended, which decides whether it may have lost bytes."""

    CLEAN = 1  # a controlled shutdown, whose marker names the previous broker epoch
    PROCESS = 2  # the process died, but the page cache is whole
    POWER = 3  # any other end: bytes that were not synced may be lost


class ConfigResourceType(IntEnum):
    """The type of a resource that has configs, in Kafka's numbers."""

    TOPIC = 2
    BROKER = 4  # an empty name stands for the defaults of all brokers
    GROUP = 32


class ScramMechanism(IntEnum):
    """The mechanism of a SCRAM credential, in Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2


class Endpoint(
    Struct, frozen=True, kw_only=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """An address where a broker listens, under the name of a listener (PLAINTEXT, GRPC, REPLICATION, ...)."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """The endpoint as host:port; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class FeatureLevel(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The cluster uses a feature at this level from now on; 0 switches it off."""

    TYPE_ID: ClassVar[int] = 1
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    name: str
    level: int


class RegisterBroker(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A broker is registered, and is fenced at first. The offset of this entry is its broker epoch.

    `broker_epoch` is written in snapshots only, which do not have the offset of the entry.
    `features` are the highest levels that its program supports, `feature_minima` the lowest above 0.
    `host_id` names the machine that the broker runs on. A broker without one counts as a host of its own.
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
    """A registered broker is fenced or unfenced, begins or ends a shutdown, or has lost directories."""

    TYPE_ID: ClassVar[int] = 3
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_shutdown: bool | None = None
    offline_directory_ids: tuple[DirectoryId, ...] | None = None


class UnregisterBroker(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A broker's registration is removed, because it will not come back."""

    TYPE_ID: ClassVar[int] = 4
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class Topic(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A topic is created, without partitions yet."""

    TYPE_ID: ClassVar[int] = 5
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId
    name: TopicName


class Partition(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A partition is created with this state. Its epochs are 0, except in a snapshot.

    `isr`: replicas that have all that is committed, as the leader last reported. `elr`: replicas that left the ISR
    when it was below its minimum, and still have all that is committed (KIP-966). `lost`: replicas that were in the
    ISR or ELR when they lost bytes (KIP-966's last known ELR, as a set). None of them is elected cleanly before it is
    back in the ISR; if no other replica is left, all of them must report their log ends. `recovering`: the leader was
    elected uncleanly and has not yet reported that its recovery is complete.
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
    """A partition changes. None leaves a field as it is; the leader NO_BROKER means that there is none."""

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
    """A topic and its partitions are deleted; its name is free."""

    TYPE_ID: ClassVar[int] = 8
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    topic_id: TopicId


class Config(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A config of a resource is set, or (None) returns to its default."""

    TYPE_ID: ClassVar[int] = 9
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    resource_type: ConfigResourceType
    resource_name: str
    name: str
    value: str | None = None


class ProducerIds(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """All producer ids below `next_producer_id` are allocated, the last block of them to this broker."""

    TYPE_ID: ClassVar[int] = 10
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: ProducerId


class ClientQuota(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A quota of an entity is set, or (None) removed (KIP-546)."""

    TYPE_ID: ClassVar[int] = 11
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    entity: tuple[tuple[str, str | None], ...]  # sorted (user|client-id|ip, name or None: default)
    key: str
    value: float | None = None

    def __post_init__(self) -> None:
        # Equal records must have equal bytes, and older releases refuse an integer here.
        if type(self.value) is int:
            force_setattr(self, "value", float(self.value))


class AccessControlEntry(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A right is granted or denied; the numbers are Kafka's."""

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
    """A right is no longer granted or denied."""

    TYPE_ID: ClassVar[int] = 13
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    acl_id: bytes


class UserScramCredential(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A user can log in with SCRAM (RFC 5802); the password cannot be computed from this."""

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
    """A user can no longer log in with this mechanism."""

    TYPE_ID: ClassVar[int] = 15
    LEVELS: ClassVar[tuple[int, ...]] = (1,)
    user: str
    mechanism: ScramMechanism


class NoOp(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """Nothing changes; its commit proves that its controller is the active one."""

    TYPE_ID: ClassVar[int] = 16
    LEVELS: ClassVar[tuple[int, ...]] = (1,)


class MetadataIncarnation(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The identity of this metadata log: 16 random bytes, written once, in its first batch.

    A log that begins again, because the controllers lost their directories, has another incarnation, and brokers that
    followed the lost log refuse it. A log that an older program began without an incarnation gets one when
    `metadata.version` is raised.
    """

    TYPE_ID: ClassVar[int] = 17
    LEVELS: ClassVar[tuple[int, ...]] = (2,)
    incarnation_id: MetadataIncarnationId


class RegisterController(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A controller is registered, active or standby, with the feature levels that its program supports."""

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

    `controller_epoch` is the Raft term of the controller that decided them. A state machine drops
    a batch whose epoch is not the term of its entry: a deposed leader's proposal that
    was appended late changes nothing, on any member.
    """

    controller_epoch: int
    records: tuple[MetadataRecord, ...]


class MetadataDecodeError(ValueError):
    """The bytes are not metadata in a form that this program reads."""


class NewerProgramNeeded(MetadataDecodeError):
    """The metadata is intact, but it uses features of a newer program."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"a newer program is needed: {detail}. The metadata is sound; start the version of the"
            " program that the other members of the cluster run, or a later one"
        )
