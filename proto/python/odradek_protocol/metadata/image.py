"""The metadata image: the cluster's metadata after replaying the metadata log up to some offset.

    metadata records, in order of offset --replay--> MetadataImage <--read-- handlers of controllers and brokers

Only `replay` changes an image. It is deterministic: the same records result in the same image in every process. The
controller has checked the records before it proposed them. A record that contradicts the image, such as one for a
partition of an unknown topic or with a stale broker epoch, is a bug, which an assertion reports.

`BrokerState` and `PartitionState` objects are frozen. `replay` replaces them instead of changing them, so any code may
store and compare them. The image itself and its `TopicState`s belong to one event loop. `copy` returns an independent
image that shares all frozen objects, which takes about 20 ns for each partition. With a copy, a snapshot can be written
on another thread while the original image changes.

Invariants, numbered as in tests/sim/README.md (the controller ensures them, and tests assert them with `check`):
- The replicas of a partition are distinct. The ISR and the ELR are disjoint subsets of the replicas and are not both
  empty (I6). The leader is in the ISR.
- If the ISR has at least min.insync.replicas members, the ELR is empty (I6).
- Partition epochs, leader epochs and broker epochs never fall (I8), because `replay` only increases them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    ControllerId,
    DirectoryId,
    IncarnationId,
    MetadataIncarnationId,
    MetadataOffset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.metadata.features import (
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    METADATA_VERSION_WITH_HOSTS,
    METADATA_VERSION_WITH_IDENTITY,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    highest_supported,
)
from odradek_protocol.metadata.records import (
    NO_LEADER,
    AccessControlEntry,
    BrokerRegistrationChange,
    ClientQuota,
    Config,
    ConfigResourceType,
    Endpoint,
    FeatureLevel,
    MetadataIncarnation,
    MetadataRecord,
    NewerProgramNeeded,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RegisterController,
    RemoveAccessControlEntry,
    RemoveTopic,
    RemoveUserScramCredential,
    RestartClass,
    ScramMechanism,
    Topic,
    UnregisterBroker,
    UserScramCredential,
)

# The record that creates a partition has all fields of the partition's state.
PartitionState: TypeAlias = Partition
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
ConfigResource: TypeAlias = tuple[ConfigResourceType, str]

NO_METADATA_OFFSET: Final = MetadataOffset(-1)
FIRST_PRODUCER_ID: Final = ProducerId(0)
ALL_BROKERS: Final[ConfigResource] = (ConfigResourceType.BROKER, "")
_NO_CONFIGS: Final[MappingProxyType[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """The present registration of a broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch  # the metadata offset of the broker's registration
    incarnation_id: IncarnationId
    directory_ids: tuple[DirectoryId, ...]
    restart_class: RestartClass
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    features: tuple[tuple[str, int], ...]
    fenced: bool
    in_shutdown: bool = False
    offline_directory_ids: tuple[DirectoryId, ...] = ()
    feature_minima: tuple[tuple[str, int], ...] = ()
    host_id: str | None = None  # None: the broker counts as the only one on its host

    @property
    def is_live(self) -> bool:
        """Whether the broker may lead partitions and join ISRs: it is neither fenced nor in a controlled shutdown."""
        return not self.fenced and not self.in_shutdown

    def endpoint(self, name: str) -> Endpoint | None:
        """Return the broker's endpoint for the listener `name`, or None if the broker has no such listener."""
        return next((e for e in self.endpoints if e.name == name), None)


@dataclass(slots=True, kw_only=True)
class TopicState:
    """A topic and its partitions, in the order of their indexes. Only `MetadataImage.replay` changes the list."""

    topic_id: TopicId
    name: TopicName
    partitions: list[PartitionState] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MetadataImage:
    """The cluster's metadata after replaying the metadata log up to and including `offset`. `epoch` is the controller
    epoch of that entry. Any code may read the fields; only `replay`, `replay_all` and `advance` change them.
    """

    offset: MetadataOffset = NO_METADATA_OFFSET
    epoch: int = 0
    brokers: dict[BrokerId, BrokerState] = field(default_factory=dict)
    topics: dict[TopicId, TopicState] = field(default_factory=dict)
    topic_ids: dict[TopicName, TopicId] = field(default_factory=dict)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    acls: dict[bytes, AccessControlEntry] = field(default_factory=dict)
    scram: dict[tuple[str, ScramMechanism], UserScramCredential] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: ProducerId = FIRST_PRODUCER_ID
    incarnation_id: MetadataIncarnationId | None = None  # None before metadata.version 2
    controllers: dict[ControllerId, RegisterController] = field(default_factory=dict)

    @property
    def metadata_version(self) -> int:
        """The level of the feature `metadata.version`, which determines the records that may be written."""
        return self.features.get(METADATA_VERSION, METADATA_VERSION_MIN)

    def feature_level(self, name: str) -> int:
        """Return the level at which the cluster uses a feature; 0 means that the feature is off."""
        # Programs of metadata.version 1 wrote this level without having transactions (see `features`).
        if name == TRANSACTION_VERSION and not self.has_identity:
            return 0
        return self.features.get(name, 0)

    @property
    def has_transactions(self) -> bool:
        """Whether the cluster supports transactions: the level of `transaction.version` is not 0, and every registered
        broker supports transactions.

        A fenced broker counts, too, because it may return and lead a partition of a transaction.
        """
        return self.feature_level(TRANSACTION_VERSION) >= 1 and all(
            highest_supported(broker.features, TRANSACTION_VERSION) >= 1
            for broker in self.brokers.values()
        )

    @property
    def has_identity(self) -> bool:
        """Whether metadata.version allows MetadataIncarnation records, which identify the metadata log."""
        return self.metadata_version >= METADATA_VERSION_WITH_IDENTITY

    @property
    def has_hosts(self) -> bool:
        """Whether metadata.version allows registrations to have a `host_id`."""
        return self.metadata_version >= METADATA_VERSION_WITH_HOSTS

    def topic(self, name: str) -> TopicState | None:
        """Return the topic that has this name now, or None."""
        topic_id = self.topic_ids.get(TopicName(name))
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: TopicId, index: int) -> PartitionState | None:
        """Return the state of a partition; None if there is no such topic or partition."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def partitions(self) -> Iterator[PartitionState]:
        """Yield the states of all partitions, by topic in order of creation, then by index."""
        for topic in self.topics.values():
            yield from topic.partitions

    def is_live(self, broker_id: BrokerId) -> bool:
        """Return whether a broker is registered and neither fenced nor in a controlled shutdown."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_live

    def config_of(self, resource_type: ConfigResourceType, name: str) -> MappingProxyType[str, str]:
        """Return the configs that are set for a resource itself, by name. Defaults are not included."""
        configs = self.configs.get((resource_type, name))
        return _NO_CONFIGS if configs is None else MappingProxyType(configs)

    def topic_config(self, topic: str, name: str, *, default_name: str | None = None) -> str | None:
        """Return the value of a topic config: the value that is set for the topic, or the cluster's default, or None if
        neither is set. `default_name` is the name of the cluster's default, if it is not `name`.
        """
        own = self.configs.get((ConfigResourceType.TOPIC, topic))
        if own is not None and name in own:
            return own[name]
        cluster = self.configs.get(ALL_BROKERS)
        return None if cluster is None else cluster.get(default_name or name)

    def min_insync_replicas(self, state: PartitionState) -> int:
        """Return the number of in-sync replicas that `acks=all` and the high watermark need: `min.insync.replicas`, but
        at most the number of replicas (KIP-966's effective minimum). Leaders and the controller use the same number.
        """
        topic = self.topics[state.topic_id]
        value = self.topic_config(topic.name, "min.insync.replicas")
        return min(1 if value is None else int(value), len(state.replicas))

    def copy(self) -> MetadataImage:
        """Return an independent image that shares the frozen objects with this one."""
        return MetadataImage(
            offset=self.offset,
            epoch=self.epoch,
            brokers=dict(self.brokers),
            topics={
                topic_id: TopicState(
                    topic_id=topic_id, name=topic.name, partitions=topic.partitions.copy()
                )
                for topic_id, topic in self.topics.items()
            },
            topic_ids=dict(self.topic_ids),
            configs={resource: dict(values) for resource, values in self.configs.items()},
            acls=dict(self.acls),
            scram=dict(self.scram),
            quotas={entity: dict(values) for entity, values in self.quotas.items()},
            features=dict(self.features),
            next_producer_id=self.next_producer_id,
            incarnation_id=self.incarnation_id,
            controllers=dict(self.controllers),
        )

    def replay(
        self,
        offset: MetadataOffset,
        epoch: int,
        record: MetadataRecord,
        delta: MetadataDelta | None = None,
    ) -> None:
        """Apply one committed record of the log entry at `offset`, whose controller epoch is `epoch`, and note the
        change in `delta`.

        Raises:
            NewerProgramNeeded: The record sets a feature to a level that this program does not support.
        """
        self.replay_all(offset, epoch, (record,), delta)

    def replay_all(
        self,
        offset: MetadataOffset,
        epoch: int,
        records: Iterable[MetadataRecord],
        delta: MetadataDelta | None = None,
    ) -> None:
        """Apply several records of one log entry, as `replay` applies one. Raises NewerProgramNeeded."""
        assert offset >= self.offset, f"replay went back from offset {self.offset} to {offset}"
        assert epoch >= self.epoch, f"replay went back from epoch {self.epoch} to {epoch}"
        self.offset, self.epoch = offset, epoch
        delta = _UnreadDelta() if delta is None else delta
        for record in records:
            _REPLAY[type(record)](self, record, delta)

    def advance(self, offset: MetadataOffset, epoch: int) -> None:
        """Set offset and epoch to those of a log entry without effect: a leader's no-op, or a batch that is dropped."""
        assert offset >= self.offset, f"replay went back from offset {self.offset} to {offset}"
        self.offset, self.epoch = offset, max(epoch, self.epoch)

    def _feature_level(self, record: FeatureLevel, delta: MetadataDelta) -> None:
        _, highest = SUPPORTED_FEATURES.get(record.name, (0, 0))
        is_meaningless = record.name == TRANSACTION_VERSION and not self.has_identity
        if record.level > highest and not is_meaningless:
            raise NewerProgramNeeded(
                f"the cluster uses {record.name} {record.level}, this program supports {highest}"
            )
        if record.level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.level
        delta.features.add(record.name)

    def _register_broker(self, record: RegisterBroker, delta: MetadataDelta) -> None:
        before = self.brokers.get(record.broker_id)
        epoch = record.broker_epoch
        self.brokers[record.broker_id] = after = BrokerState(
            broker_id=record.broker_id,
            broker_epoch=BrokerEpoch(self.offset) if epoch is None else epoch,
            incarnation_id=record.incarnation_id,
            directory_ids=record.directory_ids,
            restart_class=record.restart_class,
            endpoints=record.endpoints,
            rack=record.rack,
            features=record.features,
            fenced=record.fenced,
            feature_minima=record.feature_minima,
            host_id=record.host_id,
        )
        assert before is None or before.broker_epoch < after.broker_epoch, (before, after)
        delta.broker_changed(record.broker_id, before)

    def _broker_change(self, record: BrokerRegistrationChange, delta: MetadataDelta) -> None:
        before = self.brokers[record.broker_id]
        assert before.broker_epoch == record.broker_epoch, (before, record)
        changes: dict[str, Any] = {  # Any, because the fields have different types
            name: value
            for name in ("fenced", "in_shutdown", "offline_directory_ids")
            if (value := getattr(record, name)) is not None
        }
        self.brokers[record.broker_id] = replace(before, **changes)
        delta.broker_changed(record.broker_id, before)

    def _unregister_broker(self, record: UnregisterBroker, delta: MetadataDelta) -> None:
        before = self.brokers.pop(record.broker_id)
        assert before.broker_epoch == record.broker_epoch, (before, record)
        delta.broker_changed(record.broker_id, before)

    def _topic(self, record: Topic, delta: MetadataDelta) -> None:
        assert record.topic_id not in self.topics, record
        assert record.name not in self.topic_ids, record
        self.topics[record.topic_id] = TopicState(topic_id=record.topic_id, name=record.name)
        self.topic_ids[record.name] = record.topic_id
        delta.topics_created.add(record.topic_id)

    def _partition(self, record: Partition, delta: MetadataDelta) -> None:
        partitions = self.topics[record.topic_id].partitions
        assert record.partition == len(partitions), (record, len(partitions))
        partitions.append(record)
        delta.partition_changed((record.topic_id, record.partition), None)

    def _partition_change(self, record: PartitionChange, delta: MetadataDelta) -> None:
        partitions = self.topics[record.topic_id].partitions
        before = partitions[record.partition]
        partitions[record.partition] = changed(before, record)
        delta.partition_changed((record.topic_id, record.partition), before)

    def _remove_topic(self, record: RemoveTopic, delta: MetadataDelta) -> None:
        topic = self.topics.pop(record.topic_id)
        del self.topic_ids[topic.name]
        if self.configs.pop((ConfigResourceType.TOPIC, topic.name), None) is not None:
            delta.configs.add((ConfigResourceType.TOPIC, topic.name))
        delta.topic_removed(topic)

    def _config(self, record: Config, delta: MetadataDelta) -> None:
        resource = (record.resource_type, record.resource_name)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
        elif (values := self.configs.get(resource)) is not None:
            values.pop(record.name, None)
            if not values:
                del self.configs[resource]
        delta.configs.add(resource)

    def _producer_ids(self, record: ProducerIds, _delta: MetadataDelta) -> None:
        assert record.next_producer_id >= self.next_producer_id, (self.next_producer_id, record)
        self.next_producer_id = record.next_producer_id

    def _client_quota(self, record: ClientQuota, delta: MetadataDelta) -> None:
        if record.value is not None:
            self.quotas.setdefault(record.entity, {})[record.key] = record.value
        elif (values := self.quotas.get(record.entity)) is not None:
            values.pop(record.key, None)
            if not values:
                del self.quotas[record.entity]
        delta.quotas.add(record.entity)

    def _access_control_entry(self, record: AccessControlEntry, delta: MetadataDelta) -> None:
        self.acls[record.acl_id] = record
        delta.acls.add(record.acl_id)

    def _remove_access_control_entry(
        self, record: RemoveAccessControlEntry, delta: MetadataDelta
    ) -> None:
        self.acls.pop(record.acl_id, None)
        delta.acls.add(record.acl_id)

    def _user_scram(self, record: UserScramCredential, delta: MetadataDelta) -> None:
        self.scram[record.user, record.mechanism] = record
        delta.scram_users.add(record.user)

    def _remove_user_scram(self, record: RemoveUserScramCredential, delta: MetadataDelta) -> None:
        self.scram.pop((record.user, record.mechanism), None)
        delta.scram_users.add(record.user)

    def _incarnation(self, record: MetadataIncarnation, _delta: MetadataDelta) -> None:
        assert self.incarnation_id is None, (self.incarnation_id, record)
        self.incarnation_id = record.incarnation_id

    def _register_controller(self, record: RegisterController, _delta: MetadataDelta) -> None:
        self.controllers[record.controller_id] = record

    def _no_op(self, _record: NoOp, _delta: MetadataDelta) -> None:
        pass

    def check(self) -> None:
        """Assert the invariants that the module's docstring lists. Tests and the simulator call this."""
        for state in self.partitions():
            check_partition(state, self.min_insync_replicas(state))


def changed(before: PartitionState, record: PartitionChange) -> PartitionState:
    """Return a partition's state after a PartitionChange. The epochs rise as the docstring of `records` describes."""
    sets_leader = record.leader is not None
    return PartitionState(
        topic_id=before.topic_id,
        partition=before.partition,
        replicas=before.replicas if record.replicas is None else record.replicas,
        isr=before.isr if record.isr is None else record.isr,
        leader=before.leader if record.leader is None else record.leader,
        elr=before.elr if record.elr is None else record.elr,
        adding=before.adding if record.adding is None else record.adding,
        removing=before.removing if record.removing is None else record.removing,
        leader_epoch=before.leader_epoch + sets_leader,
        partition_epoch=before.partition_epoch + 1,
        recovering=before.recovering if record.recovering is None else record.recovering,
        lost=before.lost if record.lost is None else record.lost,
    )


def check_partition(state: PartitionState, min_insync_replicas: int) -> None:
    """Assert the invariants of one partition. `min_insync_replicas` is the effective minimum (KIP-966)."""
    replicas, isr, elr = set(state.replicas), set(state.isr), set(state.elr)
    assert len(replicas) == len(state.replicas) > 0, f"replicas are not distinct: {state}"
    assert len(isr) == len(state.isr), f"ISR is not distinct: {state}"
    assert len(elr) == len(state.elr), f"ELR is not distinct: {state}"
    assert isr | elr <= replicas, f"a member of ISR or ELR is not a replica: {state}"
    assert not isr & elr, f"ISR and ELR overlap: {state}"
    assert isr or elr, f"I6: ISR and ELR are both empty: {state}"
    assert len(isr) < min_insync_replicas or not elr, f"I6: ELR beside a full ISR: {state}"
    assert state.leader == NO_LEADER or state.leader in isr, f"leader is not in the ISR: {state}"
    assert {*state.adding, *state.removing, *state.lost} <= replicas, f"not replicas: {state}"
    assert not state.recovering or isr == {state.leader} or not isr, (
        f"RECOVERING with followers in sync: {state}"
    )


PartitionKey: TypeAlias = tuple[TopicId, PartitionIndex]

_REPLAY: Final[dict[type[MetadataRecord], Callable[[MetadataImage, Any, MetadataDelta], None]]] = {
    FeatureLevel: MetadataImage._feature_level,
    RegisterBroker: MetadataImage._register_broker,
    BrokerRegistrationChange: MetadataImage._broker_change,
    UnregisterBroker: MetadataImage._unregister_broker,
    Topic: MetadataImage._topic,
    Partition: MetadataImage._partition,
    PartitionChange: MetadataImage._partition_change,
    RemoveTopic: MetadataImage._remove_topic,
    Config: MetadataImage._config,
    ProducerIds: MetadataImage._producer_ids,
    ClientQuota: MetadataImage._client_quota,
    AccessControlEntry: MetadataImage._access_control_entry,
    RemoveAccessControlEntry: MetadataImage._remove_access_control_entry,
    UserScramCredential: MetadataImage._user_scram,
    RemoveUserScramCredential: MetadataImage._remove_user_scram,
    NoOp: MetadataImage._no_op,
    MetadataIncarnation: MetadataImage._incarnation,
    RegisterController: MetadataImage._register_controller,
}


@dataclass(slots=True, kw_only=True)
class MetadataDelta:
    """The changes that one or more calls of `MetadataImage.replay` made, so that a broker need not compare images.

    The delta has the keys of changed objects. For partitions and brokers it also has the former states (None if they
    did not exist), and for deleted topics the last ones. The present states are in the image. Changes of producer ids,
    controllers and the incarnation are not included. `is_of_snapshot` means that the image was replaced by the image of
    a snapshot. Objects that are missing in the new image were deleted by records that this process has not replayed,
    provided that both images belong to the same metadata log.
    """

    is_of_snapshot: bool = False
    topics_created: set[TopicId] = field(default_factory=set)
    topics_removed: dict[TopicId, TopicState] = field(default_factory=dict)
    partitions: dict[tuple[TopicId, PartitionIndex], PartitionState | None] = field(
        default_factory=dict
    )
    brokers: dict[BrokerId, BrokerState | None] = field(default_factory=dict)
    configs: set[tuple[ConfigResourceType, str]] = field(default_factory=set)
    acls: set[bytes] = field(default_factory=set)
    scram_users: set[str] = field(default_factory=set)
    quotas: set[QuotaEntity] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    @property
    def topics(self) -> set[TopicId]:
        """The ids of topics that were created or deleted, or of which a partition changed."""
        return self.topics_created | set(self.topics_removed) | {tid for tid, _ in self.partitions}

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__ if name != "is_of_snapshot")

    def topic_removed(self, topic: TopicState) -> None:
        """Add the deletion of a topic to this delta, and remove the changes of its partitions."""
        if topic.topic_id in self.topics_created:
            self.topics_created.discard(topic.topic_id)
        else:
            self.topics_removed[topic.topic_id] = topic
        for partition in topic.partitions:
            self.partitions.pop((topic.topic_id, partition.partition), None)

    def partition_changed(
        self, key: tuple[TopicId, PartitionIndex], before: PartitionState | None
    ) -> None:
        """Add a changed partition to this delta. `before` is kept only if the partition has no former state yet."""
        self.partitions.setdefault(key, before)

    def broker_changed(self, broker_id: BrokerId, before: BrokerState | None) -> None:
        """Add a changed broker to this delta. `before` is kept only if the broker has no former state yet."""
        self.brokers.setdefault(broker_id, before)


class _UnreadDelta(MetadataDelta):
    """A delta that nobody reads. It does not store changed partitions, which are most of the changes."""

    def partition_changed(
        self, key: tuple[TopicId, PartitionIndex], before: PartitionState | None
    ) -> None:
        pass


def differences(
    before: MetadataImage, after: MetadataImage, *, items_max: int = 1000
) -> Iterator[MetadataDelta]:
    """Compare two images, and yield the differences as several deltas: first all but topics, then topics.

    Each delta is the result of comparing about `items_max` partitions, and may be empty. So the caller can let the
    event loop do other work between two deltas. The images must not change until the iterator ends.
    """
    yield _difference_without_topics(before, after)
    delta, seen = MetadataDelta(is_of_snapshot=True), 0
    for topic in before.topics.values():
        if topic.topic_id not in after.topics:
            delta.topic_removed(topic)
            seen += 1
            if seen >= items_max:
                yield delta
                delta, seen = MetadataDelta(is_of_snapshot=True), 0
    for topic in after.topics.values():
        old = before.topics.get(topic.topic_id)
        if old is None:
            delta.topics_created.add(topic.topic_id)
        for state in topic.partitions:
            index = state.partition
            was = old.partitions[index] if old and index < len(old.partitions) else None
            if was is not state and was != state:
                delta.partition_changed((topic.topic_id, index), was)
            seen += 1
            if seen >= items_max:
                yield delta
                delta, seen = MetadataDelta(is_of_snapshot=True), 0
    yield delta


def _difference_without_topics(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    delta = MetadataDelta(is_of_snapshot=True)
    for broker_id in before.brokers.keys() | after.brokers.keys():
        if before.brokers.get(broker_id) != after.brokers.get(broker_id):
            delta.broker_changed(broker_id, before.brokers.get(broker_id))
    for resource in before.configs.keys() | after.configs.keys():
        if before.configs.get(resource) != after.configs.get(resource):
            delta.configs.add(resource)
    delta.acls = {
        acl_id
        for acl_id in before.acls.keys() | after.acls.keys()
        if before.acls.get(acl_id) != after.acls.get(acl_id)
    }
    delta.scram_users = {
        user
        for user, mechanism in before.scram.keys() | after.scram.keys()
        if before.scram.get((user, mechanism)) != after.scram.get((user, mechanism))
    }
    delta.quotas = {
        entity
        for entity in before.quotas.keys() | after.quotas.keys()
        if before.quotas.get(entity) != after.quotas.get(entity)
    }
    delta.features = {
        name
        for name in before.features.keys() | after.features.keys()
        if before.features.get(name) != after.features.get(name)
    }
    return delta
