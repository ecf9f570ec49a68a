"""`Admin`: create, describe, change and delete topics, configs, groups, ACLs, users and quotas of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Final, Self, cast

from odradek.admin.access import (
    Acl,
    AclFilter,
    Quota,
    ScramMechanism,
    ScramUser,
    salted_password,
)
from odradek.admin.admin_calls import AdminCalls, check, check_all
from odradek.admin.descriptions import (
    ClusterDescription,
    ConfigResource,
    ConfigResourceType,
    ConfigValue,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NewTopic,
    PartitionOutcome,
    QuorumDescription,
    Reassignment,
    TopicDescription,
    TopicOutcome,
)
from odradek.admin.reassignments import brokers_in_moves, reassignments_of
from odradek.admin.transaction_admin import TransactionAdmin
from odradek.admin.wire import (
    acl_entry,
    acl_of,
    cluster_description,
    config_operations,
    config_value,
    create_partitions_request,
    create_topics_request,
    feature_description,
    group_description,
    group_error,
    group_listing,
    leave_request,
    log_dir_descriptions,
    partition_message,
    partition_outcome,
    quorum_description,
    quota_alteration,
    quota_of,
    scram_upsertion,
    scram_user,
    topic_description,
    topic_descriptions,
    topic_outcome,
)
from odradek.cluster import methods
from odradek.cluster.background import in_thread
from odradek.cluster.cluster import Cluster, connect
from odradek.cluster.metadata_cache import Broker, MetadataCache
from odradek.cluster.offset_lookup import look_up_offsets
from odradek.cluster.security import SaslCredentials, TlsOptions
from odradek.cluster.turns import in_turns, run_in_turns
from odradek.errors import InvalidRequest, OdradekError, error_code
from odradek.partitions import (
    ByPartition,
    OffsetAndTimestamp,
    PartitionLike,
    TopicPartition,
    as_partition,
    as_partitions,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2, group_service_pb2

TIMEOUT_S: Final = 30.0
SCRAM_ITERATIONS: Final = 8192


class Admin:
    """Administers a cluster. Use `client.admin`, or `async with Admin("host:9090") as admin:`.

    A call goes to any broker, which forwards it to the active controller if necessary. While no broker responds, or the
    active controller changes, the call is retried for at most `timeout_s`, and then raises the last error. A call about
    one item raises the item's error. A call about several items returns an outcome for each, or raises one error.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        tls: TlsOptions | None = None,
        credentials: SaslCredentials | None = None,
        cluster: Cluster | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._cluster = (
            connect(bootstrap, tls, credentials=credentials) if cluster is None else cluster
        )
        self._owns_cluster = cluster is None
        self._timeout_s = timeout_s
        self._calls = AdminCalls(self._cluster, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, unless they belong to a `Client`."""
        if self._owns_cluster:
            await self._cluster.close()

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
        """Create a topic, and wait until the metadata contains it. A number of -1 stands for the cluster's default.
        Raises TopicExists, InvalidTopic, InvalidConfig or AuthorizationFailed; the message says why.
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
        """Create topics. Return the outcomes in the order of `topics`; one error does not affect other topics."""
        request = create_topics_request(topics, validate_only, self._calls.timeout_ms)
        response = await self._calls.change(methods.CREATE_TOPICS, request)
        return [topic_outcome(result) for result in response.topics]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. Raises UnknownTopic if it does not exist."""
        (outcome,) = await self.delete_topics([name])
        if outcome.error is not None:
            raise outcome.error

    async def delete_topics(
        self, names: Iterable[str] = (), *, topic_ids: Iterable[bytes] = ()
    ) -> list[TopicOutcome]:
        """Delete topics. Return outcomes for `names`, then for `topic_ids`; one error does not affect other topics."""
        request = pb.DeleteTopicsRequest(
            names=list(names), topic_ids=list(topic_ids), timeout_ms=self._calls.timeout_ms
        )
        response = await self._calls.change(methods.DELETE_TOPICS, request)
        return [topic_outcome(result) for result in response.topics]

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> None:
        """Increase the number of partitions of a topic to `total`. New records may go to another partition than older
        records with the same key.
        """
        request = create_partitions_request(
            name, total, assignments, validate_only, self._calls.timeout_ms
        )
        response = await self._calls.change(methods.CREATE_PARTITIONS, request)
        outcome = topic_outcome(response.topics[0])
        if outcome.error is not None:
            raise outcome.error

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """Return the topics that the caller may describe, sorted by name."""
        response = await self._calls.metadata(broker_service_pb2.MetadataRequest(all_topics=True))
        described = await run_in_turns(topic_descriptions(response))
        return sorted(
            (t for t in described if include_internal or not t.is_internal), key=lambda t: t.name
        )

    async def describe_topic(self, name: str) -> TopicDescription:
        """Describe one topic, with the leaders and replicas of its partitions. Raises UnknownTopic."""
        return await run_in_turns(topic_description(await self._calls.topic(name)))

    async def describe_configs(
        self,
        resource: ConfigResource,
        names: Iterable[str] = (),
        *,
        include_documentation: bool = False,
    ) -> dict[str, ConfigValue]:
        """Return configs of one topic, broker or group, by name: those in `names`, or all if `names` is empty."""
        request = pb.DescribeConfigsRequest(include_documentation=include_documentation)
        request.resources.add(
            type=cast("pb.ConfigResourceType", int(resource.type)),
            name=resource.name,
            config_names=list(names),
        )
        response = await self._calls.send(
            methods.DESCRIBE_CONFIGS,
            request,
            codes=lambda r: [result.error_code for result in r.resources],
        )
        result = response.resources[0]
        check(result.error_code, str(resource), result.error_message)
        return {entry.name: config_value(entry) for entry in result.entries}

    async def describe_topic_configs(self, topic: str) -> dict[str, ConfigValue]:
        """Return all configs of a topic, by name."""
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
        """Change configs of one topic, broker or group. If one change is invalid, none is made. Raises InvalidConfig.

        `append` and `subtract` add items to, and remove items from, configs that are lists (KIP-339). With
        `replaces_all`, configs that are not in `set` are reset to their defaults.
        """
        request = pb.AlterConfigsRequest(validate_only=validate_only)
        request.resources.add(
            type=cast("pb.ConfigResourceType", int(resource.type)),
            name=resource.name,
            replaces_all=replaces_all,
            operations=config_operations(set, delete, append, subtract),
        )
        response = await self._calls.change(methods.ALTER_CONFIGS, request)
        result = response.resources[0]
        check(result.error_code, str(resource), result.error_message)

    async def alter_topic_configs(
        self, topic: str, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Set configs of a topic, and reset the configs in `delete` to their defaults. Raises InvalidConfig."""
        resource = ConfigResource(type=ConfigResourceType.TOPIC, name=topic)
        await self.alter_configs(resource, set=set, delete=delete)

    async def elect_leaders(
        self, partitions: Iterable[PartitionLike] | None = None, *, unclean: bool = False
    ) -> list[PartitionOutcome]:
        """Elect the preferred leader (first replica) of each of these partitions; of all if `partitions` is None.

        With `unclean`, a partition without a leader gets a live replica as its leader even if that replica is out of
        sync. Records that the replica does not have are lost. A partition that needs no election counts as a success.
        """
        names = [partition_message(p) async for p in in_turns(partitions or ())]
        if partitions is not None and not names:
            return []  # In the request, an empty list would stand for all partitions.
        request = pb.ElectLeadersRequest(
            election_type=int(unclean), partitions=names, timeout_ms=self._calls.timeout_ms
        )
        response = await self._calls.change(methods.ELECT_LEADERS, request)
        check(response.error_code, "electing leaders")
        return [
            partition_outcome(r, ErrorCode.ELECTION_NOT_NEEDED)
            async for r in in_turns(response.partitions)
        ]

    async def reassign_partitions(
        self, replicas: ByPartition[Sequence[int] | None], *, keep_replication_factor: bool = False
    ) -> list[PartitionOutcome]:
        """Begin to move each partition to its list of brokers, the preferred leader first. None cancels the move. With
        `keep_replication_factor`, a list whose length is not the replication factor is refused (KIP-860).
        """
        request = pb.AlterPartitionReassignmentsRequest(timeout_ms=self._calls.timeout_ms)
        request.keep_replication_factor = keep_replication_factor
        async for name, broker_ids in in_turns(replicas.items()):
            request.reassignments.add(partition=partition_message(name), replicas=broker_ids or ())
        response = await self._calls.change(methods.ALTER_PARTITION_REASSIGNMENTS, request)
        check(response.error_code, "reassigning partitions")
        return [partition_outcome(result) async for result in in_turns(response.partitions)]

    async def list_reassignments(self, *, include_sizes: bool = False) -> list[Reassignment]:
        """Return the moves of partitions that are in progress, sorted by partition.

        With `include_sizes`, the brokers with replicas of moving partitions report how many bytes they have, which
        takes longer.
        """
        topics = await self.list_topics(include_internal=True)
        directories: list[LogDirDescription] = []
        if include_sizes and (ids := brokers_in_moves(topics)):
            directories = await self.describe_log_dirs(ids, include_partitions=True)
        return await run_in_turns(reassignments_of(topics, directories))

    async def delete_records(self, before: ByPartition[int]) -> list[PartitionOutcome]:
        """Delete each partition's records before an offset (-1: before the high watermark) on all live replicas."""
        request = pb.DeleteRecordsRequest(timeout_ms=self._calls.timeout_ms)
        async for partition, offset in in_turns(before.items()):
            request.partitions.add(partition=partition_message(partition), offset=offset)
        response = await self._calls.send(
            methods.DELETE_RECORDS,
            request,
            codes=lambda r: [result.error_code for result in r.partitions],
        )
        return [partition_outcome(result) async for result in in_turns(response.partitions)]

    async def list_offsets(
        self, timestamps_ms: ByPartition[int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the offset and timestamp of each partition's first record at or after a timestamp (ms since the Unix
        epoch). -1 stands for the end offset, -2 for the earliest offset, and -3 for the record with the greatest
        timestamp.
        """
        return await look_up_offsets(
            self._cluster,
            {as_partition(p): at for p, at in timestamps_ms.items()},
            read_committed=read_committed,
            timeout_s=self._timeout_s,
        )

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """Lists, describes and aborts transactions."""
        return TransactionAdmin(self._calls)

    async def list_groups(self) -> list[GroupListing]:
        """Return all groups of the cluster, sorted by name."""
        response = await self._calls.send(
            methods.LIST_GROUPS,
            group_service_pb2.ListGroupsRequest(),
            codes=lambda r: [r.error_code],
        )
        check(response.error_code, "listing groups")
        listings = [group_listing(listed) async for listed in in_turns(response.groups)]
        return sorted(listings, key=lambda listing: listing.group)

    async def describe_group(self, group: str) -> GroupDescription:
        """Describe one group, with its members and their partitions. Raises UnknownGroup."""
        request = group_service_pb2.DescribeGroupsRequest(group_ids=[group])
        response = await self._calls.send(
            methods.DESCRIBE_GROUPS,
            request,
            codes=lambda r: [group.error_code for group in r.groups],
        )
        (description,) = response.groups
        check(description.error_code, f"group {group!r}")
        return group_description(description)

    async def group_offsets(
        self, group: str, partitions: Iterable[PartitionLike] = ()
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, by partition. Partitions without a committed offset are left out."""
        names = as_partitions(partitions)
        request = group_service_pb2.FetchOffsetsRequest(
            group_id=group,
            partitions=[partition_message(name) async for name in in_turns(names)],
            member_epoch=-1,
        )
        response = await self._calls.send(
            methods.GROUP_FETCH, request, codes=lambda r: [r.error_code]
        )
        check(response.error_code, f"offsets of group {group!r}")
        return {
            TopicPartition(
                committed.partition.topic, committed.partition.partition
            ): committed.offset
            async for committed in in_turns(response.offsets)
            if committed.offset >= 0
        }

    async def alter_group_offsets(self, group: str, offsets: ByPartition[int]) -> None:
        """Commit offsets for a group without members, from which new members start. Raises GroupInUse."""
        request = group_service_pb2.CommitOffsetsRequest(group_id=group, member_epoch=-1)
        async for name, offset in in_turns(offsets.items()):
            request.offsets.add(
                partition=partition_message(as_partition(name)), offset=offset, leader_epoch=-1
            )
        response = await self._calls.send(
            methods.GROUP_COMMIT, request, codes=lambda r: [r.error_code]
        )
        if error_code(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID:
            raise group_error(ErrorCode.NON_EMPTY_GROUP, group)
        check(response.error_code, f"group {group!r}")
        async for result in in_turns(response.offsets):
            partition = result.partition
            check(result.error_code, f"{partition.topic}-{partition.partition}")

    async def delete_groups(self, groups: Sequence[str]) -> dict[str, OdradekError | None]:
        """Delete groups without members, and their offsets. Return each group's error, or None if it was deleted."""
        outcomes: dict[str, OdradekError | None] = {}
        for group in groups:
            response = await self._calls.send(
                methods.DELETE_GROUPS,
                group_service_pb2.DeleteGroupsRequest(group_ids=[group]),
                codes=lambda r: [group.error_code for group in r.groups],
            )
            for result in response.groups:
                code = result.error_code
                outcomes[group] = group_error(code, group) if code else None
        return outcomes

    async def delete_group_offsets(self, group: str, partitions: Iterable[PartitionLike]) -> None:
        """Delete committed offsets. Raises GroupInUse if a member of the group is subscribed to one of the topics."""
        request = group_service_pb2.DeleteOffsetsRequest(
            group_id=group,
            partitions=[partition_message(name) for name in as_partitions(partitions)],
        )
        response = await self._calls.send(
            methods.DELETE_OFFSETS, request, codes=lambda r: [r.error_code]
        )
        check(response.error_code, f"group {group!r}")
        for result in response.offsets:
            partition = result.partition
            check(result.error_code, f"{partition.topic}-{partition.partition}")

    async def remove_group_member(self, group: str, member_id: str) -> None:
        """Remove a dead member from a group of the consumer protocol (KIP-848), so that other members get its
        partitions before its session expires. A live member joins again. Raises UnknownGroup, InvalidRequest.
        """
        response = await self._calls.send(
            methods.GROUP_HEARTBEAT, leave_request(group, member_id), codes=lambda r: [r.error_code]
        )
        if error_code(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID:
            raise InvalidRequest(f"group {group!r} has no member {member_id!r}")
        check(response.error_code, f"group {group!r}", response.error_message)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add access control entries. Refused entries are named in the error; all others are added."""
        entries = [acl_entry(acl) async for acl in in_turns(acls)]
        response = await self._calls.change(
            methods.CREATE_ACLS, pb.CreateAclsRequest(entries=entries)
        )
        check_all(
            [f"ACL of {entry.principal} on {entry.resource_name!r}" for entry in entries],
            response.results,
            "the others were added",
        )

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the entries that match any filter, and return them. Other filters apply even if one is refused."""
        request = pb.DeleteAclsRequest(filters=[acl_entry(f) for f in filters])
        response = await self._calls.change(methods.DELETE_ACLS, request)
        deleted = [
            acl_of(entry)
            async for result in in_turns(response.results)
            async for entry in in_turns(result.deleted)
        ]
        check_all(
            [f"filter {number}" for number in range(1, len(request.filters) + 1)],
            response.results,
            f"the other filters deleted {len(deleted)} ACLs",
        )
        return deleted

    async def describe_acls(self, acl_filter: AclFilter | None = None) -> list[Acl]:
        """Return the access control entries that match the filter; without a filter, all entries."""
        request = pb.DescribeAclsRequest(filter=acl_entry(acl_filter or AclFilter()))
        response = await self._calls.send(methods.DESCRIBE_ACLS, request)
        check(response.error_code, "describing ACLs")
        return [acl_of(entry) async for entry in in_turns(response.entries)]

    async def set_scram_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512,
        iterations: int = SCRAM_ITERATIONS,
    ) -> None:
        """Create a SCRAM user, or change a user's password for one mechanism. Only a salted hash is sent."""
        salt, salted = await in_thread(salted_password, mechanism, password, iterations)
        upsertion = scram_upsertion(user, mechanism, iterations, salt, salted)
        await self._alter_scram(pb.AlterScramUsersRequest(upsertions=[upsertion]))

    async def delete_scram_user(
        self, user: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    ) -> None:
        """Delete the SCRAM credential of a user for one mechanism."""
        request = pb.AlterScramUsersRequest()
        request.deletions.add(name=user, mechanism=mechanism)
        await self._alter_scram(request)

    async def describe_scram_users(self, names: Sequence[str] = ()) -> list[ScramUser]:
        """Return the SCRAM users with these names, or all. Raises OdradekError if a named user does not exist."""
        request = pb.DescribeScramUsersRequest(names=names)
        response = await self._calls.send(methods.DESCRIBE_SCRAM_USERS, request)
        check(response.error_code, "describing SCRAM users")
        async for user in in_turns(response.users):
            check(user.error_code, f"user {user.name!r}", user.error_message)
        return [scram_user(user) async for user in in_turns(response.users)]

    async def alter_quotas(self, quotas: Iterable[Quota], *, validate_only: bool = False) -> None:
        """Set or remove client quotas. Refused quotas are named in the error; all others are changed."""
        quotas = list(quotas)
        request = pb.AlterQuotasRequest(
            validate_only=validate_only, entries=[quota_alteration(quota) for quota in quotas]
        )
        response = await self._calls.change(methods.ALTER_QUOTAS, request)
        check_all(
            [f"quota {quota.key} of {dict(quota.entity)}" for quota in quotas],
            response.results,
            "the others were changed",
        )

    async def describe_quotas(self) -> list[Quota]:
        """Return all client quotas of the cluster."""
        response = await self._calls.send(methods.DESCRIBE_QUOTAS, pb.DescribeQuotasRequest())
        check(response.error_code, "describing quotas")
        return [quota_of(entry) async for entry in in_turns(response.entries)]

    async def list_brokers(self) -> list[Broker]:
        """Return the brokers that are not fenced, with their addresses, sorted by id."""
        response = await self._calls.metadata(broker_service_pb2.MetadataRequest())
        cache = MetadataCache()
        cache.apply(response)
        return [cache.brokers[broker_id] for broker_id in sorted(cache.brokers)]

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster: its active controller and all registered brokers, including those that are fenced."""
        response = await self._calls.send(methods.DESCRIBE_CLUSTER, pb.DescribeClusterRequest())
        check(response.error_code, "describing the cluster")
        return cluster_description(response)

    async def describe_quorum(self) -> QuorumDescription:
        """Describe the metadata quorum: its leader, its term and the progress of each voter."""
        response = await self._calls.send(
            methods.DESCRIBE_QUORUM, pb.DescribeMetadataQuorumRequest()
        )
        check(response.quorum.error_code, "describing the metadata quorum")
        return quorum_description(response.quorum)

    async def describe_log_dirs(
        self,
        broker_ids: Sequence[int] = (),
        *,
        include_partitions: bool = False,
        endpoint: str = "",
    ) -> list[LogDirDescription]:
        """Return the data directories of these brokers, or of all brokers. A broker that does not respond has one entry
        with the error.

        With `endpoint`, only the broker at this gRPC address is called, and describes its own directories. This works
        even while the broker is fenced.
        """
        request = pb.DescribeLogDirsRequest(
            broker_ids=broker_ids,
            include_partitions=include_partitions,
            timeout_ms=self._calls.timeout_ms // 2,
        )
        response = await self._calls.send(methods.DESCRIBE_LOG_DIRS, request, endpoint=endpoint)
        return [
            described for broker in response.brokers for described in log_dir_descriptions(broker)
        ]

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that is fenced and will not return."""
        response = await self._calls.change(
            methods.UNREGISTER_BROKER, pb.UnregisterBrokerRequest(broker_id=broker_id)
        )
        check(response.error_code, f"broker {broker_id}", response.error_message)

    async def describe_features(self) -> list[FeatureDescription]:
        """Return the features of the cluster: the levels in use, and the levels that all processes support."""
        response = await self._calls.send(methods.DESCRIBE_FEATURES, pb.DescribeFeaturesRequest())
        return [feature_description(feature) for feature in response.features]

    async def update_feature(self, name: str, level: int, *, allow_downgrade: bool = False) -> None:
        """Set the level of a feature. A level that is lower than the current one needs `allow_downgrade`."""
        response = await self._calls.change(
            methods.UPDATE_FEATURES,
            pb.UpdateFeaturesRequest(name=name, level=level, allow_downgrade=allow_downgrade),
        )
        check(response.error_code, f"feature {name!r}", response.error_message)

    async def _alter_scram(self, request: pb.AlterScramUsersRequest) -> None:
        response = await self._calls.change(methods.ALTER_SCRAM_USERS, request)
        for result in response.results:
            check(result.error_code, f"user {result.name!r}", result.error_message)
