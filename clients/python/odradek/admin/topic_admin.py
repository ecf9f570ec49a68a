"""The part of the admin that is about topics, their configs and their partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from odradek.admin.admin_calls import AdminCalls, check
from odradek.admin.descriptions import (
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigValue,
    NewTopic,
    PartitionOutcome,
    TopicDescription,
    TopicOutcome,
)
from odradek.cluster.metadata_cache import MetadataCache
from odradek.cluster.offset_lookup import look_up_offsets
from odradek.errors import OdradekError, UnknownTopic, error_of
from odradek.offsets import OffsetAndTimestamp
from odradek.partitions import ByPartition, PartitionLike, TopicPartition, as_partition
from odradek.transports import methods
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2, common_pb2

_SPREAD_PAUSE_S: Final = 0.02
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


class TopicAdmin(AdminCalls):
    """The part of `Admin` that is about topics, their configs and their partitions."""

    # --- topics ---------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignments: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicOutcome:
        """Create a topic, and wait until its partitions have leaders.

        Raises:
            TopicExists, InvalidTopic, InvalidConfig, AuthorizationFailed: and why.
        """
        new = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=assignments,
            configs=configs or {},
        )
        (outcome,) = await self.create_topics([new], validate_only=validate_only)
        if outcome.error is not None:
            raise outcome.error
        return outcome

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Create several, each for itself; in their order."""
        request = pb.CreateTopicsRequest(validate_only=validate_only, timeout_ms=self._timeout_ms)
        for new in topics:
            item = request.topics.add(
                name=new.name,
                partition_count=new.partitions,
                replication_factor=new.replication_factor,
                configs=dict(new.configs),
            )
            for replicas in new.assignments:
                item.assignments.add(broker_ids=replicas)
        response = await self._call(methods.CREATE_TOPICS, request)
        outcomes = [_topic_outcome(result) for result in response.topics]
        if not validate_only:
            await self._wait_for_leaders([o.name for o in outcomes if o.error is None])
        return outcomes

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopic."""
        (outcome,) = await self.delete_topics([name])
        if outcome.error is not None:
            raise outcome.error

    async def delete_topics(
        self, names: Iterable[str] = (), *, topic_ids: Iterable[bytes] = ()
    ) -> list[TopicOutcome]:
        """Delete several, each for itself: names first, then ids."""
        request = pb.DeleteTopicsRequest(
            names=list(names), topic_ids=list(topic_ids), timeout_ms=self._timeout_ms
        )
        response = await self._call(methods.DELETE_TOPICS, request)
        return [_topic_outcome(result) for result in response.topics]

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> None:
        """Let the topic have `total` partitions. Keys of new records may move; old records do not."""
        request = pb.CreatePartitionsRequest(
            validate_only=validate_only, timeout_ms=self._timeout_ms
        )
        item = request.topics.add(name=name, total_count=total)
        for replicas in assignments:
            item.assignments.add(broker_ids=replicas)
        response = await self._call(methods.CREATE_PARTITIONS, request)
        outcome = _topic_outcome(response.topics[0])
        if outcome.error is not None:
            raise outcome.error
        if not validate_only:
            await self._wait_for_leaders([name], partitions=total)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """All topics that we may see, by name."""
        response = await self._call(
            methods.METADATA, broker_service_pb2.MetadataRequest(all_topics=True)
        )
        described = [_describe(response, t.name) for t in response.topics if not t.error_code]
        return sorted(
            (t for t in described if include_internal or not t.is_internal), key=lambda t: t.name
        )

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its partitions' leaders and replicas. Raises UnknownTopic."""
        response = await self._call(
            methods.METADATA, broker_service_pb2.MetadataRequest(topics=[name])
        )
        return _describe(response, name)

    async def describe_configs(
        self,
        resource: ConfigResource,
        names: Iterable[str] = (),
        *,
        include_documentation: bool = False,
    ) -> dict[str, ConfigValue]:
        """Configs by name; all of them unless `names` are given."""
        request = pb.DescribeConfigsRequest(include_documentation=include_documentation)
        request.resources.add(
            type=_resource_type(resource), name=resource.name, config_names=list(names)
        )
        response = await self._call(methods.DESCRIBE_CONFIGS, request)
        result = response.resources[0]
        check(result.error_code, str(resource), result.error_message)
        return {entry.name: _config(entry) for entry in result.entries}

    async def describe_topic_configs(self, topic: str) -> dict[str, ConfigValue]:
        """All configs of a topic, by name."""
        return await self.describe_configs(
            ConfigResource(type=ConfigResourceType.TOPIC, name=topic)
        )

    async def alter_configs(
        self,
        resource: ConfigResource,
        *,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        replaces_all: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change configs of one thing, all or none. `append` and `subtract` are for lists (KIP-339).

        Raises:
            InvalidConfig: a name or a value, and what is allowed.
        """
        request = pb.AlterConfigsRequest(validate_only=validate_only)
        item = request.resources.add(
            type=_resource_type(resource), name=resource.name, replaces_all=replaces_all
        )
        for operation, values in ((_SET, set), (_APPEND, append), (_SUBTRACT, subtract)):
            for name, value in (values or {}).items():
                item.operations.add(name=name, operation=operation, value=value)
        for name in delete:
            item.operations.add(name=name, operation=_DELETE)
        response = await self._call(methods.ALTER_CONFIGS, request)
        result = response.resources[0]
        check(result.error_code, str(resource), result.error_message)

    async def alter_topic_configs(
        self, topic: str, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Set or delete configs of a topic."""
        resource = ConfigResource(type=ConfigResourceType.TOPIC, name=topic)
        await self.alter_configs(resource, set=set, delete=delete)

    # --- partitions -------------------------------------------------------------------------------

    async def elect_leaders(
        self, partitions: Iterable[PartitionLike] = (), *, unclean: bool = False
    ) -> list[PartitionOutcome]:
        """Let the preferred replica lead again; or, unclean, any that lives, losing records. None given: all.

        ELECTION_NOT_NEEDED counts as done.
        """
        request = pb.ElectLeadersRequest(
            election_type=int(unclean),
            partitions=[_partition(p) for p in partitions],
            timeout_ms=self._timeout_ms,
        )
        response = await self._call(methods.ELECT_LEADERS, request)
        check(response.error_code, "electing leaders")
        return [_partition_outcome(r, ErrorCode.ELECTION_NOT_NEEDED) for r in response.partitions]

    async def reassign_partitions(
        self, replicas: ByPartition[Sequence[int] | None]
    ) -> list[PartitionOutcome]:
        """Move partitions to these brokers (preferred leader first); None cancels a move."""
        request = pb.AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms)
        for partition, broker_ids in replicas.items():
            request.reassignments.add(partition=_partition(partition), replicas=broker_ids or ())
        response = await self._call(methods.ALTER_PARTITION_REASSIGNMENTS, request)
        check(response.error_code, "reassigning partitions")
        return [_partition_outcome(result) for result in response.partitions]

    async def delete_records(self, before: ByPartition[int]) -> list[PartitionOutcome]:
        """Delete the records before these offsets; -1: all that are committed."""
        request = pb.DeleteRecordsRequest(timeout_ms=self._timeout_ms)
        for partition, offset in before.items():
            request.partitions.add(partition=_partition(partition), offset=offset)
        response = await self._call(methods.DELETE_RECORDS, request)
        return [_partition_outcome(result) for result in response.partitions]

    async def list_offsets(
        self, timestamps_ms: ByPartition[int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp; -1 latest, -2 earliest, -3 of the largest timestamp."""
        return await look_up_offsets(
            self._cluster,
            {as_partition(p): at for p, at in timestamps_ms.items()},
            read_committed=read_committed,
            timeout_s=self._timeout_s,
        )

    # --- the cluster ------------------------------------------------------------------------------

    async def _wait_for_leaders(self, names: list[str], *, partitions: int = 1) -> None:
        """Until a broker's metadata has them all with leaders; gives up quietly when time is up."""
        deadline_s = time.monotonic() + self._timeout_s
        while names and time.monotonic() < deadline_s:
            response = await self._call(
                methods.METADATA, broker_service_pb2.MetadataRequest(topics=names)
            )
            names = [
                topic.name
                for topic in response.topics
                if topic.error_code
                or len(topic.partitions) < partitions
                or any(p.leader_id < 0 for p in topic.partitions)
            ]
            if names:
                await asyncio.sleep(_SPREAD_PAUSE_S)


def _describe(response: broker_service_pb2.MetadataResponse, name: str) -> TopicDescription:
    told = next((t for t in response.topics if t.name == name), None)
    if told is None or told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(
            f"topic {name!r} does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if told.error_code:
        raise error_of(told.error_code, f"topic {name!r}", told.error_message)
    cache = MetadataCache()
    cache.apply(response)
    topic = cache.topics[name]
    return TopicDescription(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(topic.partitions),
    )


def _topic_outcome(result: pb.TopicResult) -> TopicOutcome:
    error: OdradekError | None = None
    if result.error_code:
        error = error_of(result.error_code, f"topic {result.name!r}", result.error_message)
    return TopicOutcome(
        name=result.name,
        topic_id=result.topic_id,
        partitions=result.partition_count,
        replication_factor=result.replication_factor,
        error=error,
    )


def _partition_outcome(
    result: pb.PartitionResult, fine: ErrorCode = ErrorCode.NONE
) -> PartitionOutcome:
    name = TopicPartition(result.partition.topic, result.partition.partition)
    error: OdradekError | None = None
    if result.error_code not in (ErrorCode.NONE, fine):
        error = error_of(result.error_code, str(name), result.error_message)
    return PartitionOutcome(partition=name, offset=result.offset, error=error)


def _partition(partition: PartitionLike) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition[0], partition=partition[1])


def _resource_type(resource: ConfigResource) -> pb.ConfigResourceType:
    return cast("pb.ConfigResourceType", int(resource.type))


def _config(entry: pb.ConfigEntry) -> ConfigValue:
    known = entry.source in ConfigSource.__members__.values()
    return ConfigValue(
        name=entry.name,
        value=entry.value if entry.HasField("value") else None,
        source=ConfigSource(entry.source) if known else ConfigSource.UNKNOWN,
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        documentation=entry.documentation,
    )
