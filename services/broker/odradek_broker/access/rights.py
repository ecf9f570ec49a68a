"""Which rights a caller needs for each API, in Kafka's protocol and on gRPC.

`GUARDS` is the table for both protocols. It contains the APIs whose requests all need the same right, on the cluster or
on the group that the request names. The right is checked before a handler gets the request. Rights that depend on other
fields of a request (topics, configs) are checked by the Kafka handlers, and on gRPC by `RULES`.

`needs_of` returns all needs of a gRPC request, and the caller must meet each of them. A need is a list of rights, and
the caller must have at least one of them. In a right, the name None means any resource of that type. Methods that list
resources omit the resources that the caller may not see (`HIDDEN`), as the Kafka handlers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode


class Guard(NamedTuple):
    """The right that every request of an API needs: in Kafka's protocol (`api`), in gRPC (`rpc`), or in both."""

    operation: Operation
    resource_type: ResourceType
    api: ApiKey | None
    rpc: str | None

    def resource_name(self, request: object) -> str:
        """Return the name of the resource. In both protocols, a request about one group has the group's name in
        `group_id`.
        """
        if self.resource_type is ResourceType.CLUSTER:
            return CLUSTER_NAME
        name: str = getattr(request, "group_id")  # noqa: B009  (the messages share no type)
        return name

    @property
    def error(self) -> ErrorCode:
        """The error code in the response to a caller that lacks the right."""
        if self.resource_type is ResourceType.CLUSTER:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.GROUP_AUTHORIZATION_FAILED


_ADMIN: Final = "/odradek.v1.AdminService/"
_GROUPS: Final = "/odradek.v1.GroupService/"
_TRANSACTIONS: Final = "/odradek.v1.TransactionService/"
_STAGED: Final = "/odradek.v1.StagedWriteService/"
_CLUSTER: Final = ResourceType.CLUSTER
_GROUP: Final = ResourceType.GROUP

GUARDS: Final = (
    Guard(Operation.ALTER, _CLUSTER, ApiKey.ELECT_LEADERS, _ADMIN + "ElectLeaders"),
    Guard(
        Operation.ALTER,
        _CLUSTER,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        _ADMIN + "AlterPartitionReassignments",
    ),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.LIST_PARTITION_REASSIGNMENTS, None),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.UNREGISTER_BROKER, _ADMIN + "UnregisterBroker"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_QUORUM, _ADMIN + "DescribeMetadataQuorum"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_LOG_DIRS, _ADMIN + "DescribeLogDirs"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.UPDATE_FEATURES, _ADMIN + "UpdateFeatures"),
    Guard(Operation.DESCRIBE, _CLUSTER, None, _ADMIN + "DescribeFeatures"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.CREATE_ACLS, _ADMIN + "CreateAcls"),
    Guard(Operation.ALTER, _CLUSTER, ApiKey.DELETE_ACLS, _ADMIN + "DeleteAcls"),
    Guard(Operation.DESCRIBE, _CLUSTER, ApiKey.DESCRIBE_ACLS, _ADMIN + "DescribeAcls"),
    Guard(
        Operation.ALTER, _CLUSTER, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _ADMIN + "AlterScramUsers"
    ),
    Guard(
        Operation.DESCRIBE,
        _CLUSTER,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        _ADMIN + "DescribeScramUsers",
    ),
    Guard(Operation.ALTER_CONFIGS, _CLUSTER, ApiKey.ALTER_CLIENT_QUOTAS, _ADMIN + "AlterQuotas"),
    Guard(
        Operation.DESCRIBE_CONFIGS,
        _CLUSTER,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        _ADMIN + "DescribeQuotas",
    ),
    Guard(Operation.DESCRIBE_CONFIGS, _CLUSTER, ApiKey.LIST_CONFIG_RESOURCES, None),
    Guard(Operation.READ, _GROUP, ApiKey.JOIN_GROUP, None),
    Guard(Operation.READ, _GROUP, ApiKey.SYNC_GROUP, None),
    Guard(Operation.READ, _GROUP, ApiKey.HEARTBEAT, None),
    Guard(Operation.READ, _GROUP, ApiKey.LEAVE_GROUP, None),
    # The Kafka API is None, because the handler of ConsumerGroupHeartbeat checks the feature group.version before the
    # right, and responds UNSUPPORTED_VERSION if the level is too low.
    Guard(Operation.READ, _GROUP, None, _GROUPS + "GroupHeartbeat"),
    Guard(Operation.READ, _GROUP, ApiKey.OFFSET_COMMIT, _GROUPS + "CommitOffsets"),
    Guard(Operation.DESCRIBE, _GROUP, None, _GROUPS + "FetchOffsets"),
    Guard(Operation.DELETE, _GROUP, ApiKey.OFFSET_DELETE, _GROUPS + "DeleteOffsets"),
)
"""Each row has an API of the Kafka protocol and the RPC that does the same. None: that protocol has no such call, or
the call's requests may name several groups (OffsetFetch), or the call's handler checks the right itself.
"""

KAFKA_GUARDS: Final = {guard.api: guard for guard in GUARDS if guard.api is not None}
GRPC_GUARDS: Final = {guard.rpc: guard for guard in GUARDS if guard.rpc is not None}


Right = tuple[Operation, ResourceType, str | None]
Need = Sequence[Right]
Rule = Callable[[Any], Iterable[Need]]  # Any, because each method has its own type of request
# The name of a repeated field of the response, and the need that a caller must meet to see an item of the field.
Hiding = tuple[str, Callable[[Any], Need]]

_BROKER: Final = "/odradek.v1.BrokerService/"
_CONFIG_OF_TOPIC: Final = 2
_CONFIG_OF_GROUP: Final = 32

CHECKED_BY_SERVICERS: Final = frozenset(
    _BROKER + name for name in ("Produce", "Fetch", "Metadata", "WatchMetadata")
)


def _topic(operation: Operation, name: str) -> Right:
    return (operation, ResourceType.TOPIC, name)


def _group(operation: Operation, name: str) -> Right:
    return (operation, ResourceType.GROUP, name)


def _cluster(operation: Operation) -> Right:
    return (operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _transactional(operation: Operation, name: str) -> Right:
    return (operation, ResourceType.TRANSACTIONAL_ID, name)


def _writes_transactions(request: Any) -> Iterable[Need]:
    return [[_transactional(Operation.WRITE, request.transactional_id)]]


def _writes_steps(request: Any) -> Iterable[Need]:
    return [[_transactional(Operation.WRITE, request.query)]]


def _describes_topics(request: Any) -> Iterable[Need]:
    return ([_topic(Operation.DESCRIBE, partition.topic)] for partition in request.partitions)


def _init_producer_id(request: Any) -> Iterable[Need]:
    if request.transactional_id:
        kind = ResourceType.TRANSACTIONAL_ID
        return [[(Operation.WRITE, kind, request.transactional_id)]]
    return [[_cluster(Operation.IDEMPOTENT_WRITE), (Operation.WRITE, ResourceType.TOPIC, None)]]


def may_create(topic: str) -> Need:
    """Return the rights that allow a caller to create a topic of that name; the caller needs one of them."""
    return [_cluster(Operation.CREATE), _topic(Operation.CREATE, topic)]


def _create_topics(request: Any) -> Iterable[Need]:
    return (may_create(topic.name) for topic in request.topics)


def _delete_topics(request: Any) -> Iterable[Need]:
    needs: list[Need] = [[_topic(Operation.DELETE, name)] for name in request.names]
    # ACLs contain names of topics, not ids, so a caller that deletes topics by id needs a right on the cluster.
    if request.topic_ids:
        needs.append([_cluster(Operation.ALTER)])
    return needs


def _configs(operation: Operation) -> Rule:
    def right(resource: Any) -> Right:
        if resource.type == _CONFIG_OF_TOPIC:
            return _topic(operation, resource.name)
        if resource.type == _CONFIG_OF_GROUP:
            return _group(operation, resource.name)
        return _cluster(operation)

    return lambda request: ([right(resource)] for resource in request.resources)


def _delete_records(request: Any) -> Iterable[Need]:
    return ([_topic(Operation.DELETE, deletion.partition.topic)] for deletion in request.partitions)


def _member(request: Any) -> Iterable[Need]:
    return ([_topic(Operation.DESCRIBE, topic)] for topic in request.subscribed_topics)


def _commit(request: Any) -> Iterable[Need]:
    topics = {committed.partition.topic for committed in request.offsets}
    return ([_topic(Operation.READ, topic)] for topic in sorted(topics))


def _fetch_offsets(request: Any) -> Iterable[Need]:
    topics = {partition.topic for partition in request.partitions}
    return ([_topic(Operation.DESCRIBE, topic)] for topic in sorted(topics))


def _delete_offsets(request: Any) -> Iterable[Need]:
    topics = {partition.topic for partition in request.partitions}
    return ([_topic(Operation.READ, topic)] for topic in sorted(topics))


def _nothing(_request: Any) -> Iterable[Need]:
    return []


def _groups(operation: Operation) -> Rule:
    return lambda request: ([_group(operation, group_id)] for group_id in request.group_ids)


RULES: Final[dict[str, Rule]] = {
    _BROKER + "ListOffsets": _describes_topics,
    _BROKER + "OffsetForLeaderEpoch": _describes_topics,
    _BROKER + "InitProducerId": _init_producer_id,
    _ADMIN + "CreateTopics": _create_topics,
    _ADMIN + "DeleteTopics": _delete_topics,
    _ADMIN + "CreatePartitions": lambda request: (
        [_topic(Operation.ALTER, topic.name)] for topic in request.topics
    ),
    _ADMIN + "DescribeConfigs": _configs(Operation.DESCRIBE_CONFIGS),
    _ADMIN + "AlterConfigs": _configs(Operation.ALTER_CONFIGS),
    _ADMIN + "DeleteRecords": _delete_records,
    _ADMIN + "DescribeCluster": _nothing,  # every client must be able to find the brokers
    _GROUPS + "GroupHeartbeat": _member,
    _GROUPS + "CommitOffsets": _commit,
    _GROUPS + "FetchOffsets": _fetch_offsets,
    _GROUPS + "ListGroups": _nothing,  # the response omits what the caller may not see
    _GROUPS + "DescribeGroups": _groups(Operation.DESCRIBE),
    _GROUPS + "DeleteGroups": _groups(Operation.DELETE),
    _GROUPS + "DeleteOffsets": _delete_offsets,
    _TRANSACTIONS + "InitProducer": _writes_transactions,
    _TRANSACTIONS + "EndTransaction": _writes_transactions,
    _TRANSACTIONS + "AbortTransaction": _writes_transactions,
    _TRANSACTIONS + "CommitTransactionOffsets": lambda request: chain(
        _writes_transactions(request),
        ([_group(Operation.READ, request.commit.group_id)],),
        _commit(request.commit),
    ),
    _TRANSACTIONS + "DescribeProducers": lambda request: [[_topic(Operation.READ, request.topic)]],
    _TRANSACTIONS + "FindHanging": _nothing,  # the response omits what the caller may not see
    _TRANSACTIONS + "AbortHanging": lambda _: [[_cluster(Operation.ALTER)]],
    _STAGED + "OpenStaged": _writes_steps,
    _STAGED + "RenewStaged": _writes_steps,
    _STAGED + "PrepareStaged": _writes_steps,
    _STAGED + "CompleteStep": _writes_steps,
    _STAGED + "AbortStaged": _writes_steps,
    _STAGED + "ForgetSteps": _writes_steps,
    _STAGED + "DescribeSteps": lambda request: [
        [_transactional(Operation.DESCRIBE, request.query)]
    ],
    _TRANSACTIONS + "ListTransactions": _nothing,  # the response omits what the caller may not see
    _TRANSACTIONS + "DescribeTransactions": lambda request: [
        [_transactional(Operation.DESCRIBE, name)] for name in request.transactional_ids
    ],
}


def needs_of(method: str, request: Any) -> Iterable[Need]:
    """Return the needs of a gRPC request. A method in neither GRPC_GUARDS nor RULES is refused to every caller."""
    guard, rule = GRPC_GUARDS.get(method), RULES.get(method)
    if guard is None and rule is None:
        return [()]
    needs: Iterable[Need] = () if rule is None else rule(request)
    if guard is None:
        return needs
    right = (guard.operation, guard.resource_type, guard.resource_name(request))
    return chain(([right],), needs)


HIDDEN: Final[Mapping[str, Hiding]] = {
    _GROUPS + "FetchOffsets": (
        "offsets",
        lambda offset: [_topic(Operation.DESCRIBE, offset.partition.topic)],
    ),
    _GROUPS + "ListGroups": (
        "groups",
        lambda group: [_cluster(Operation.DESCRIBE), _group(Operation.DESCRIBE, group.group_id)],
    ),
    _TRANSACTIONS + "ListTransactions": (
        "transactions",
        lambda listed: [_transactional(Operation.DESCRIBE, listed.transactional_id)],
    ),
}

MUTATIONS: Final[Mapping[str, Callable[[Any], int]]] = {
    # The number of partitions that a request creates or deletes; the quota controller_mutation_rate limits it
    # (KIP-599).
    _ADMIN + "CreateTopics": lambda request: sum(
        max(topic.partition_count, len(topic.assignments), 1) for topic in request.topics
    ),
    _ADMIN + "CreatePartitions": lambda request: len(request.topics),
    _ADMIN + "DeleteTopics": lambda request: len(request.names) + len(request.topic_ids),
}
