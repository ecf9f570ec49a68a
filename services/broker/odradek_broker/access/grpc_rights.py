"""What each unary gRPC method needs: the same rights as its sibling in Kafka's protocol.

A rule lists needs, all of which the caller must have; a need lists rights, one of which does. A
name of None means any resource of that type. Where everything is asked for at once, what the caller
may not see is left out of the answer (`HIDDEN`), as Kafka's listeners do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType

Right = tuple[Operation, ResourceType, str | None]
Need = Sequence[Right]
Rule = Callable[[Any], Iterable[Need]]  # Any: the request of the method
Hiding = tuple[
    str, Callable[[Any], Need]
]  # a repeated field of the answer; what seeing an item takes

_BROKER: Final = "/odradek.v1.BrokerService/"
_ADMIN: Final = "/odradek.v1.AdminService/"
_GROUP: Final = "/odradek.v1.GroupService/"
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


def _on_cluster(operation: Operation) -> Rule:
    return lambda _request: [[_cluster(operation)]]


def _describes_topics(request: Any) -> Iterable[Need]:
    return [[_topic(Operation.DESCRIBE, one.topic)] for one in request.partitions]


def _init_producer_id(request: Any) -> Iterable[Need]:
    if request.transactional_id:
        kind = ResourceType.TRANSACTIONAL_ID
        return [[(Operation.WRITE, kind, request.transactional_id)]]
    return [[_cluster(Operation.IDEMPOTENT_WRITE), (Operation.WRITE, ResourceType.TOPIC, None)]]


def may_create(topic: str) -> Need:
    """To create a topic of that name."""
    return [_cluster(Operation.CREATE), _topic(Operation.CREATE, topic)]


def _create_topics(request: Any) -> Iterable[Need]:
    return [may_create(one.name) for one in request.topics]


def _delete_topics(request: Any) -> Iterable[Need]:
    needs: list[Need] = [[_topic(Operation.DELETE, name)] for name in request.names]
    if request.topic_ids:  # ids are not names: whoever goes by them must be allowed all
        needs.append([_cluster(Operation.ALTER)])
    return needs


def _configs(operation: Operation) -> Rule:
    def right(resource: Any) -> Right:
        if resource.type == _CONFIG_OF_TOPIC:
            return _topic(operation, resource.name)
        if resource.type == _CONFIG_OF_GROUP:
            return _group(operation, resource.name)
        return _cluster(operation)

    return lambda request: [[right(one)] for one in request.resources]


def _delete_records(request: Any) -> Iterable[Need]:
    return [[_topic(Operation.DELETE, one.partition.topic)] for one in request.partitions]


def _member(request: Any) -> Iterable[Need]:
    return [
        [_group(Operation.READ, request.group_id)],
        *([_topic(Operation.DESCRIBE, topic)] for topic in request.subscribed_topics),
    ]


def _commit(request: Any) -> Iterable[Need]:
    topics = {one.partition.topic for one in request.offsets}
    return [
        [_group(Operation.READ, request.group_id)],
        *([_topic(Operation.READ, topic)] for topic in sorted(topics)),
    ]


def _fetch_offsets(request: Any) -> Iterable[Need]:
    topics = {one.topic for one in request.partitions}
    return [
        [_group(Operation.DESCRIBE, request.group_id)],
        *([_topic(Operation.DESCRIBE, topic)] for topic in sorted(topics)),
    ]


def _delete_offsets(request: Any) -> Iterable[Need]:
    topics = {one.topic for one in request.partitions}
    return [
        [_group(Operation.DELETE, request.group_id)],
        *([_topic(Operation.READ, topic)] for topic in sorted(topics)),
    ]


def _nothing(_request: Any) -> Iterable[Need]:
    return []


def _groups(operation: Operation) -> Rule:
    return lambda request: [[_group(operation, one)] for one in request.group_ids]


RULES: Final[dict[str, Rule]] = {
    _BROKER + "ListOffsets": _describes_topics,
    _BROKER + "OffsetForLeaderEpoch": _describes_topics,
    _BROKER + "InitProducerId": _init_producer_id,
    _ADMIN + "CreateTopics": _create_topics,
    _ADMIN + "DeleteTopics": _delete_topics,
    _ADMIN + "CreatePartitions": lambda request: [
        [_topic(Operation.ALTER, one.name)] for one in request.topics
    ],
    _ADMIN + "DescribeConfigs": _configs(Operation.DESCRIBE_CONFIGS),
    _ADMIN + "AlterConfigs": _configs(Operation.ALTER_CONFIGS),
    _ADMIN + "ElectLeaders": _on_cluster(Operation.ALTER),
    _ADMIN + "AlterPartitionReassignments": _on_cluster(Operation.ALTER),
    _ADMIN + "DeleteRecords": _delete_records,
    _ADMIN + "CreateAcls": _on_cluster(Operation.ALTER),
    _ADMIN + "DeleteAcls": _on_cluster(Operation.ALTER),
    _ADMIN + "DescribeAcls": _on_cluster(Operation.DESCRIBE),
    _ADMIN + "AlterScramUsers": _on_cluster(Operation.ALTER),
    _ADMIN + "DescribeScramUsers": _on_cluster(Operation.DESCRIBE),
    _ADMIN + "AlterQuotas": _on_cluster(Operation.ALTER_CONFIGS),
    _ADMIN + "DescribeQuotas": _on_cluster(Operation.DESCRIBE_CONFIGS),
    _ADMIN + "UnregisterBroker": _on_cluster(Operation.ALTER),
    _ADMIN + "DescribeCluster": _nothing,  # where brokers are: whoever may come in must know
    _ADMIN + "DescribeMetadataQuorum": _on_cluster(Operation.DESCRIBE),
    _ADMIN + "DescribeLogDirs": _on_cluster(Operation.DESCRIBE),
    _ADMIN + "UpdateFeatures": _on_cluster(Operation.ALTER),
    _ADMIN + "DescribeFeatures": _on_cluster(Operation.DESCRIBE),
    _GROUP + "GroupHeartbeat": _member,
    _GROUP + "CommitOffsets": _commit,
    _GROUP + "FetchOffsets": _fetch_offsets,
    _GROUP + "ListGroups": _nothing,  # HIDDEN
    _GROUP + "DescribeGroups": _groups(Operation.DESCRIBE),
    _GROUP + "DeleteGroups": _groups(Operation.DELETE),
    _GROUP + "DeleteOffsets": _delete_offsets,
}

HIDDEN: Final[Mapping[str, Hiding]] = {
    _GROUP + "FetchOffsets": (
        "offsets",
        lambda one: [_topic(Operation.DESCRIBE, one.partition.topic)],
    ),
    _GROUP + "ListGroups": (
        "groups",
        lambda one: [_cluster(Operation.DESCRIBE), _group(Operation.DESCRIBE, one.group_id)],
    ),
}

MUTATIONS: Final[Mapping[str, Callable[[Any], int]]] = {
    # How many partitions a request makes: what controller_mutation_rate counts (KIP-599).
    _ADMIN + "CreateTopics": lambda request: sum(
        max(one.partition_count, len(one.assignments), 1) for one in request.topics
    ),
    _ADMIN + "CreatePartitions": lambda request: len(request.topics),
    _ADMIN + "DeleteTopics": lambda request: len(request.names) + len(request.topic_ids),
}
