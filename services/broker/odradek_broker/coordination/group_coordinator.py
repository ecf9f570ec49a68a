"""The group coordinator of this broker. Handlers of Kafka and gRPC requests call it with values of `groups.messages`.

The state of a group is stored in partition `hash(group id) % count` of `__consumer_offsets`, and the leader of that
partition coordinates the group. Calls for other groups raise CoordinatorError(NOT_COORDINATOR). `placement` returns the
broker that coordinates a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

import re2

from odradek_broker.access.authorizer import Authorizer, EverybodyMay
from odradek_broker.cluster.topic_creation import TopicCreation
from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_broker.coordination.hosted_shard import CoordinatorError, returned
from odradek_broker.coordination.placement import Placement
from odradek_broker.coordinator_step import (
    LoadedMarker,
    LoadedRecord,
    RequestId,
    Step,
    respond,
)
from odradek_broker.groups.formats import record_codec
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    EndHanging,
    EndInTransaction,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    GroupListing,
    Heartbeat,
    InvalidPattern,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    NeedsRegistration,
    OffsetsAnswer,
    OrphanEnded,
    Registered,
    Synced,
    SyncGroup,
    TopicCatalog,
    all_are_visible,
)
from odradek_broker.groups.records import GroupRecord, OffsetCommitRecord
from odradek_broker.groups.settings import (
    ConsumerGroupSettings,
    GroupSettings,
    MigrationPolicy,
    no_configs,
)
from odradek_broker.replication.local_partitions import LocalPartitions
from odradek_broker.settings import BrokerSettings
from odradek_broker.settled_clock import SettledClock
from odradek_protocol.access import Operation, ResourceType
from odradek_protocol.identity import (
    GroupId,
    LeaderEpoch,
    PartitionIndex,
    ProducerId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import NO_METADATA_OFFSET, MetadataImage
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.topic_names import OFFSETS_TOPIC
from odradek_runtime.clock import SYSTEM_CLOCK, Clock
from odradek_runtime.logs import event_log

T = TypeVar("T")
_PATTERN_BYTES_MAX: Final = 4_096
_PATTERNS_KEPT_MAX: Final = 1_000
_log = event_log(__name__)


class GroupCoordinator:
    """The groups that this broker coordinates. Run `run()` in a task group, and call all other methods on its event
    loop.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        partitions: LocalPartitions,
        topic_creation: TopicCreation,
        authorizer: Authorizer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """The timeouts of sessions use the monotonic clock of `clock`; records contain its wall-clock time.

        If `authorizer` is None, every client may see all topics.
        """
        self._settings = settings
        self._now_ms = clock.monotonic_ms
        self._now_wall_ms = clock.wall_ms
        self._clock = SettledClock()
        self._read_clock()
        self._partitions = partitions
        self.placement = Placement(
            topic=OFFSETS_TOPIC,
            partitions=partitions,
            creation=topic_creation,
            partition_count=settings.offsets_topic_num_partitions,
            replication_factor=settings.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.offsets_topic_segment_bytes),
                "durability": settings.offsets_topic_durability,
            },
        )
        self._authorizer = authorizer or EverybodyMay()
        self._rights_version = self._authorizer.version
        self._host: CoordinatorHost[GroupShard] = CoordinatorHost(
            topic=OFFSETS_TOPIC,
            partitions=partitions,
            kind=GroupKind(
                group_settings(settings, self._configs_of),
                self.catalog,
                clock.monotonic_ms,
                clock.wall_ms,
            ),
            now_wall_ms=clock.wall_ms,
        )
        self._catalog: TopicCatalog | None = None
        self._catalog_offset = NO_METADATA_OFFSET

    async def run(self) -> None:
        """Coordinate groups until cancelled."""
        unwatch = self._partitions.watch_image(self._image_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._host.run(), name="group coordinator")
                tasks.create_task(self._expire_offsets(), name="expire offsets")
        finally:
            unwatch()

    async def _expire_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            self.expire_offsets()

    def expire_offsets(self) -> None:
        """Delete the committed offsets whose retention time has passed."""
        wall_ms = self._read_clock()
        self._host.take_all(lambda shard: shard.offsets.expire_offsets(wall_ms=wall_ms))

    def _read_clock(self) -> int:
        return self._clock.read(now_ms=self._now_ms(), wall_ms=self._now_wall_ms())

    async def _ask(
        self, group_id: str, decide: Callable[[GroupShard, RequestId], Step[GroupRecord]]
    ) -> Any:
        partition = self.placement.partition_of(group_id)
        if partition is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return await self._host.ask(partition, decide)

    def _ask_soon(
        self,
        group_id: str,
        decide: Callable[[GroupShard, RequestId], Step[GroupRecord]],
        shape: Callable[[Any], T],
    ) -> asyncio.Future[T]:
        partition = self.placement.partition_of(group_id)
        if partition is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return self._host.ask_soon(partition, decide, shape)

    async def join(self, request: JoinGroup) -> Joined:
        """Handle JoinGroup. This waits until the group has completed its rebalance."""
        catalog = self.catalog()
        joined: Joined = await self._ask(
            request.group_id,
            lambda shard, i: shard.handle_join(
                i, request, catalog, now_ms=self._now_ms(), wall_ms=self._now_wall_ms()
            ),
        )
        return joined

    async def sync(self, request: SyncGroup) -> Synced:
        """Handle SyncGroup. This waits until the group's leader has sent the assignment."""
        synced: Synced = await self._ask(
            request.group_id,
            lambda shard, i: shard.handle_sync(
                i, request, now_ms=self._now_ms(), wall_ms=self._now_wall_ms()
            ),
        )
        return synced

    async def heartbeat(self, request: Heartbeat) -> ErrorCode:
        """Handle a heartbeat of the classic protocol."""
        return await self.heartbeat_soon(request, returned)

    def heartbeat_soon(
        self, request: Heartbeat, shape: Callable[[ErrorCode | CoordinatorError], T]
    ) -> asyncio.Future[T]:
        """Handle a heartbeat of the classic protocol without a coroutine; see `CoordinatorHost.ask_soon`."""
        catalog = self.catalog()
        return self._ask_soon(
            request.group_id,
            lambda shard, i: shard.handle_heartbeat(i, request, catalog, now_ms=self._now_ms()),
            shape,
        )

    async def leave(self, request: LeaveGroup) -> Left:
        response: Left = await self._ask(
            request.group_id,
            lambda shard, i: shard.handle_leave(
                i, request, now_ms=self._now_ms(), wall_ms=self._now_wall_ms()
            ),
        )
        return response

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        """Handle ConsumerGroupHeartbeat (KIP-848)."""
        return await self.consumer_heartbeat_soon(request, returned)

    def consumer_heartbeat_soon(
        self,
        request: ConsumerHeartbeat,
        shape: Callable[[ConsumerHeartbeatAnswer | CoordinatorError], T],
    ) -> asyncio.Future[T]:
        """Handle ConsumerGroupHeartbeat without a coroutine; see `CoordinatorHost.ask_soon`."""
        catalog = self.catalog()
        return self._ask_soon(
            request.group_id,
            lambda shard, i: shard.handle_consumer_heartbeat(
                i, request, catalog, now_ms=self._now_ms(), wall_ms=self._now_wall_ms()
            ),
            shape,
        )

    async def commit(self, request: CommitOffsets) -> OffsetsAnswer:
        return await self.commit_soon(request, returned)

    def commit_soon(
        self, request: CommitOffsets, shape: Callable[[OffsetsAnswer | CoordinatorError], T]
    ) -> asyncio.Future[T]:
        """Handle OffsetCommit without a coroutine; see `CoordinatorHost.ask_soon`."""
        catalog = self.catalog()
        return self._ask_soon(
            request.group_id,
            lambda shard, i: shard.offsets.handle_commit(
                i, request, catalog, now_ms=self._now_ms(), wall_ms=self._now_wall_ms()
            ),
            shape,
        )

    async def commit_in_transaction(
        self, request: CommitInTransaction, registered: Registered | None = None
    ) -> OffsetsAnswer | NeedsRegistration:
        """Handle TxnOffsetCommit. If the response is NeedsRegistration, the caller adds the group's partition of
        `__consumer_offsets` to the transaction and then calls this method again with `registered`.
        """
        catalog = self.catalog()
        response: OffsetsAnswer | NeedsRegistration = await self._ask(
            request.commit.group_id,
            lambda shard, i: shard.offsets.handle_commit_in_transaction(
                i,
                request,
                catalog,
                registered=registered,
                now_ms=self._now_ms(),
                wall_ms=self._now_wall_ms(),
            ),
        )
        return response

    async def end_in_transaction(
        self, partition: PartitionIndex, leader_epoch: LeaderEpoch, request: EndInTransaction
    ) -> ErrorCode:
        """Write a transaction marker into a partition of `__consumer_offsets`. The marker commits or discards the
        pending offsets of the transaction.

        The marker is written only if this broker still coordinates the partition in `leader_epoch`.

        Raises:
            CoordinatorError: as for `CoordinatorHost.ask`. `LocalMarkers` reports this error as NOT_LEADER_OR_FOLLOWER.
        """
        code: ErrorCode = await self._host.ask(
            partition,
            lambda shard, i: shard.offsets.handle_end_in_transaction(
                i, request, now_ms=self._now_ms()
            ),
            leader_epoch=leader_epoch,
        )
        return code

    def guard(self, partition: PartitionIndex, producer_id: ProducerId) -> int | None:
        """Return the producer's guard (pending_offsets.py) in a partition of `__consumer_offsets`. Return None if this
        broker has not loaded the partition, or if the producer has no guard.
        """
        shard = self._host.active_shard(partition)
        return None if shard is None else shard.table.offsets.pending.guard(producer_id)

    async def end_hanging(self, partition: PartitionIndex, request: EndHanging) -> ErrorCode:
        """End a transaction that no transaction coordinator will end, in a partition of `__consumer_offsets`.

        The result is an error code. INVALID_TXN_STATE: since the caller read the guard, the producer sent a request or
        the shard was loaded again. NOT_LEADER_OR_FOLLOWER: this broker does not coordinate the partition.
        """
        try:
            code: ErrorCode = await self._host.ask(
                partition,
                lambda shard, i: shard.offsets.handle_end_hanging(
                    i, request, now_ms=self._now_ms()
                ),
            )
        except CoordinatorError:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code

    async def fetch_offsets(self, request: FetchOffsets) -> FetchedOffsets:
        """Handle OffsetFetch of one group."""
        # This call removes the committed offsets of deleted topics, so that the response does not contain them.
        self.catalog()
        fetched: FetchedOffsets = await self._ask(
            request.group_id,
            lambda shard, i: shard.offsets.handle_fetch_offsets(i, request, now_ms=self._now_ms()),
        )
        return fetched

    async def delete_offsets(
        self, group_id: GroupId, partitions: Sequence[TopicPartition]
    ) -> OffsetsAnswer:
        response: OffsetsAnswer = await self._ask(
            group_id,
            lambda shard, i: shard.offsets.handle_delete_offsets(i, group_id, partitions),
        )
        return response

    async def delete_group(self, group_id: GroupId) -> ErrorCode:
        code: ErrorCode = await self._ask(
            group_id, lambda shard, i: shard.handle_delete_group(i, group_id)
        )
        return code

    async def describe(self, group_id: GroupId) -> GroupDescription:
        """Describe a classic or a consumer group."""
        described: GroupDescription = await self._ask(
            group_id, lambda shard, i: respond(i, shard.table.describe(group_id))
        )
        return described

    def listings(self) -> Iterator[GroupListing]:
        """Iterate over the groups that this broker coordinates. The iteration is lazy, so a group may have changed
        between the call and the iteration.

        Raises:
            CoordinatorError: COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded.
        """
        if self._host.is_loading():
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return (
            listing for shard in self._host.active_shards() for listing in shard.table.listings()
        )

    def _image_changed(self, image: MetadataImage) -> None:
        self.catalog()

    def _configs_of(self, group_id: str) -> Mapping[str, str]:
        return self._partitions.image.config_of(ConfigResourceType.GROUP, group_id)

    def catalog(self) -> TopicCatalog:
        """Return the topics of the current image. The result is the same object as in the last call unless topics or
        ACLs changed.
        """
        image, previous = self._partitions.image, self._catalog
        if previous is not None and image.offset == self._catalog_offset:
            return previous
        self._catalog_offset = image.offset
        topics = {
            topic.name: (topic.topic_id, len(topic.partitions))
            for topic in image.topics.values()
            if topic.partitions
        }
        rights_version = self._authorizer.version
        if (
            previous is not None
            and previous.topics == topics
            and rights_version == self._rights_version
        ):
            return previous
        self._rights_version = rights_version
        catalog = self._catalog = TopicCatalog(
            version=0 if previous is None else previous.version + 1,
            topics=topics,
            matching=_Patterns(frozenset(topics)),
            visible=_Visible(self._authorizer) if self._authorizer.is_on else all_are_visible,
        )
        if previous is not None:
            deleted = {
                TopicName(name)
                for name, (topic_id, _) in previous.topics.items()
                if topic_id != topics.get(name, (None, 0))[0]
            }
            if deleted:
                self._host.take_all(
                    lambda shard: shard.offsets.forget_deleted_topics(catalog, deleted)
                )
        return catalog


class _Patterns:
    """Matches topic names against patterns by RE2, which takes time proportional to the length of a name.

    As in Kafka, internal topics can match. Clients exclude them if they want to.
    """

    def __init__(self, names: frozenset[TopicName]) -> None:
        self._names = names
        self._known: dict[str, frozenset[TopicName]] = {}

    def __call__(self, pattern: str) -> frozenset[TopicName]:
        matched = self._known.get(pattern)
        if matched is None:
            if len(pattern.encode()) > _PATTERN_BYTES_MAX:
                raise InvalidPattern(f"the pattern is longer than {_PATTERN_BYTES_MAX} bytes")
            try:
                compiled = re2.compile(pattern)
            except re2.error as error:
                raise InvalidPattern(f"the pattern {pattern!r} is not valid RE2: {error}") from None
            matched = frozenset(name for name in self._names if compiled.fullmatch(name))
            if len(self._known) >= _PATTERNS_KEPT_MAX:
                self._known.clear()
            self._known[pattern] = matched
        return matched


class _Visible:
    """Selects the topics that a principal may describe from the topics that match a pattern. Results are cached."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._known: dict[tuple[str, str, frozenset[TopicName]], frozenset[TopicName]] = {}

    def __call__(
        self, principal: str, host: str, names: frozenset[TopicName]
    ) -> frozenset[TopicName]:
        key = (principal, host, names)
        visible = self._known.get(key)
        if visible is None:
            visible = frozenset(
                name
                for name in names
                if self._authorizer.allows(
                    principal, host, Operation.DESCRIBE, ResourceType.TOPIC, name
                )
            )
            if len(self._known) >= _PATTERNS_KEPT_MAX:
                self._known.clear()
            self._known[key] = visible
        return visible


def group_settings(
    settings: BrokerSettings, configs_of: Callable[[str], Mapping[str, str]] = no_configs
) -> GroupSettings:
    """Convert the settings of a broker to those of its groups."""
    return GroupSettings(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_size=settings.group_max_size,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        offset_metadata_bytes_max=settings.offset_metadata_bytes_max,
        consumer=ConsumerGroupSettings(
            session_timeout_ms=settings.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            rebalance_heartbeat_interval_ms=settings.group_consumer_rebalance_heartbeat_interval_ms,
            members_max=settings.group_consumer_max_size,
            default_assignor=settings.group_consumer_assignors[0],
            migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
            configs_of=configs_of,
        ),
    )


@dataclass(frozen=True, slots=True)
class GroupKind:
    """Implements ShardKind: CoordinatorHost uses it to create, load and write the shards of the group coordinator.

    `catalog` returns the current topics. `now_ms` and `now_wall_ms` read the monotonic and the wall clock.
    """

    settings: GroupSettings
    catalog: Callable[[], TopicCatalog]
    now_ms: Callable[[], int]
    now_wall_ms: Callable[[], int]
    guards: Iterator[int] = field(default_factory=lambda: count(1))

    def create(self) -> GroupShard:
        """Return an empty shard."""
        return GroupShard(settings=self.settings, guards=self.guards)

    def replay(self, shard: GroupShard, record: LoadedRecord) -> None:
        """Apply one record of the log. Unknown record types, which newer releases may write, are ignored."""
        group_record = record_codec.decode(record.key, record.value)
        if isinstance(group_record, OffsetCommitRecord) and record.is_transactional:
            shard.table.offsets.replay_pending(
                group_record, record.producer_id, record.producer_epoch
            )
        elif group_record is not None:
            shard.table.replay(group_record)

    def replay_marker(self, shard: GroupShard, marker: LoadedMarker) -> None:
        """Commit or discard the pending offsets of the transaction that the marker ends."""
        shard.table.offsets.end_transaction(marker.producer_id, is_commit=marker.is_commit)

    def loaded(
        self, shard: GroupShard, partition: PartitionIndex, leader_epoch: LeaderEpoch
    ) -> Step[GroupRecord]:
        """Start the sessions of all members. Delete the offsets of topics that were deleted before the load.

        An offset whose topic is missing in the image belongs to a deleted topic, never to a topic that is too new for
        the image: the image that made this broker the leader is not older than the images of earlier leaders.
        """
        shard.table.loaded(now_ms=self.now_ms())
        return shard.offsets.forget_deleted_topics(self.catalog())

    def closed(self, partition: PartitionIndex, leader_epoch: LeaderEpoch) -> None:
        """Do nothing, because groups have no state outside of their shard."""

    def tick(self, shard: GroupShard, partition: PartitionIndex) -> Step[GroupRecord]:
        """Remove members whose session has expired, and end rebalances whose timeout has passed."""
        return shard.tick(now_ms=self.now_ms(), wall_ms=self.now_wall_ms())

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        return record_codec.encode(record)

    def state_key(self, record: GroupRecord) -> None:
        """Return None, so that every record of a group is written: one request may write several records with the same
        key, and their order matters.
        """

    def obey(self, partition: PartitionIndex, leader_epoch: LeaderEpoch, order: Any) -> None:
        """Log that the marker of a transaction was lost."""
        assert isinstance(order, OrphanEnded), f"order {order!r} in {partition}"
        _log.error(
            "Completed a hanging transaction in a partition of __consumer_offsets, because its marker was lost",
            partition=partition,
            producer_id=order.producer_id,
            producer_epoch=order.producer_epoch,
            is_commit=order.is_commit,
        )
