"""A valid request of every API, and the rights (operations on resources) that it needs."""

from __future__ import annotations

from typing import Any

from odradek_protocol.access import CLUSTER_NAME, Operation, ResourceType
from odradek_protocol.identity import NO_TOPIC_ID, TopicName
from odradek_protocol.kafka import fetch, messages, produce
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.unit.kafka.fake_broker import TOPICS
from tests.unit.security.acl_entries import Right

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
FREE: list[Right] = []  # anybody may ask this; it tells nothing that needs a right


def cluster(operation: Operation) -> list[Right]:
    return [(operation, CLUSTER, CLUSTER_NAME)]


def topic(operation: Operation, name: str = "orders") -> list[Right]:
    return [(operation, TOPIC, name)]


def group(operation: Operation) -> list[Right]:
    return [(operation, GROUP, "group")]


def transactional_id(operation: Operation) -> list[Right]:
    return [(operation, TRANSACTIONAL_ID, "tx")]


RIGHTS: dict[ApiKey, list[Right]] = {
    ApiKey.PRODUCE: topic(Operation.WRITE),
    ApiKey.FETCH: topic(Operation.READ),
    ApiKey.LIST_OFFSETS: topic(Operation.DESCRIBE),
    ApiKey.METADATA: topic(Operation.DESCRIBE),
    ApiKey.OFFSET_COMMIT: [*group(Operation.READ), *topic(Operation.READ)],
    ApiKey.OFFSET_FETCH: [*group(Operation.DESCRIBE), *topic(Operation.DESCRIBE)],
    ApiKey.FIND_COORDINATOR: group(Operation.DESCRIBE),
    ApiKey.JOIN_GROUP: group(Operation.READ),
    ApiKey.HEARTBEAT: group(Operation.READ),
    ApiKey.LEAVE_GROUP: group(Operation.READ),
    ApiKey.SYNC_GROUP: group(Operation.READ),
    ApiKey.DESCRIBE_GROUPS: group(Operation.DESCRIBE),
    ApiKey.LIST_GROUPS: FREE,  # leaves out what may not be described
    ApiKey.SASL_HANDSHAKE: FREE,
    ApiKey.API_VERSIONS: FREE,
    ApiKey.CREATE_TOPICS: topic(Operation.CREATE, "new"),
    ApiKey.DELETE_TOPICS: topic(Operation.DELETE),
    ApiKey.DELETE_RECORDS: topic(Operation.DELETE),
    ApiKey.INIT_PRODUCER_ID: cluster(Operation.IDEMPOTENT_WRITE),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topic(Operation.DESCRIBE),
    ApiKey.ADD_PARTITIONS_TO_TXN: cluster(
        Operation.CLUSTER_ACTION
    ),  # from version 4 on, for brokers
    ApiKey.ADD_OFFSETS_TO_TXN: [*transactional_id(Operation.WRITE), *group(Operation.READ)],
    ApiKey.END_TXN: transactional_id(Operation.WRITE),
    ApiKey.WRITE_TXN_MARKERS: cluster(Operation.ALTER),
    ApiKey.TXN_OFFSET_COMMIT: [
        *transactional_id(Operation.WRITE),
        *group(Operation.READ),
        *topic(Operation.READ),
    ],
    ApiKey.DESCRIBE_PRODUCERS: topic(Operation.READ),
    ApiKey.DESCRIBE_TRANSACTIONS: transactional_id(Operation.DESCRIBE),
    ApiKey.LIST_TRANSACTIONS: FREE,  # leaves out what may not be described
    ApiKey.DESCRIBE_ACLS: cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: topic(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: topic(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_LOG_DIRS: cluster(Operation.DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: FREE,
    ApiKey.CREATE_PARTITIONS: topic(Operation.ALTER),
    ApiKey.DELETE_GROUPS: group(Operation.DELETE),
    ApiKey.ELECT_LEADERS: cluster(Operation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: topic(Operation.ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: [*group(Operation.DELETE), *topic(Operation.READ)],
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster(Operation.ALTER),
    ApiKey.DESCRIBE_QUORUM: cluster(Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: FREE,  # where the brokers are; its rights are told to who may DESCRIBE
    ApiKey.UNREGISTER_BROKER: cluster(Operation.ALTER),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: [*group(Operation.READ), *topic(Operation.DESCRIBE)],
    ApiKey.CONSUMER_GROUP_DESCRIBE: group(Operation.DESCRIBE),
    ApiKey.LIST_CONFIG_RESOURCES: cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic(Operation.DESCRIBE),
}

BATCH = bytes(61)


def message_of(key: ApiKey, version: int) -> Any:
    """Return a valid request; it names topic `orders` and group `group`, to which RIGHTS refers."""
    if key is ApiKey.PRODUCE:
        name = None if version >= produce.WITH_TOPIC_IDS else TopicName("orders")
        topic_id = TOPICS["orders"] if name is None else NO_TOPIC_ID
        part = produce.ProducePartition(0, memoryview(bytearray(BATCH)))
        return produce.ProduceRequest(None, 1, 100, [produce.ProduceTopic(name, topic_id, [part])])
    if key is ApiKey.FETCH:
        return fetch_request(version)
    kwargs = _FIELDS.get(key, dict)()
    return messages.MESSAGES[key][0](version=version, **kwargs)


def fetch_request(
    version: int, *, session_id: int = 0, session_epoch: int = -1, offset: int = 0
) -> fetch.FetchRequest:
    name = None if version >= fetch.WITH_TOPIC_IDS else TopicName("orders")
    topic_id = TOPICS["orders"] if name is None else NO_TOPIC_ID
    part = fetch.FetchPartition(0, -1, offset, -1, -1, 1 << 20)
    return fetch.FetchRequest(
        replica_id=-1,
        wait_ms_max=100,
        bytes_min=1,
        bytes_max=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[fetch.FetchTopic(name, topic_id, [part])],
        forgotten=[],
        rack="",
    )


def _nested(api: ApiKey, path: str, **fields: Any) -> Any:
    cls = messages.MESSAGES[api][0]
    for name in path.split("."):
        cls = getattr(cls, name)
    return cls(**fields)


def _configs(key: ApiKey, **extra: Any) -> dict[str, Any]:
    config = _nested(
        key, "AlterConfigsResource.AlterableConfig", name="retention.ms", value="1", **extra
    )
    return {
        "resources": [
            _nested(
                key,
                "AlterConfigsResource",
                resource_type=2,
                resource_name="orders",
                configs=[config],
            )
        ]
    }


def _partitions(key: ApiKey, topic_type: str, partition_type: str, **fields: Any) -> list[Any]:
    part = _nested(key, f"{topic_type}.{partition_type}", **fields)
    name = "topic" if key is ApiKey.OFFSET_FOR_LEADER_EPOCH else "name"
    named: dict[str, Any] = {name: "orders"}
    if key in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT):
        named["topic_id"] = messages.uuid_of(TOPICS["orders"])
    return [_nested(key, topic_type, partitions=[part], **named)]


_FIELDS: dict[ApiKey, Any] = {
    ApiKey.LIST_OFFSETS: lambda: {
        "replica_id": -1,
        "topics": _partitions(
            ApiKey.LIST_OFFSETS, "ListOffsetsTopic", "ListOffsetsPartition", timestamp=-1
        ),
    },
    ApiKey.METADATA: lambda: {
        "topics": [_nested(ApiKey.METADATA, "MetadataRequestTopic", name="orders", topic_id=None)]
    },
    ApiKey.OFFSET_COMMIT: lambda: {
        "group_id": "group",
        "topics": _partitions(
            ApiKey.OFFSET_COMMIT,
            "OffsetCommitRequestTopic",
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=1,
            committed_metadata="",
            committed_leader_epoch=-1,
        ),
    },
    ApiKey.OFFSET_FETCH: lambda: {
        "groups": [
            _nested(
                ApiKey.OFFSET_FETCH,
                "OffsetFetchRequestGroup",
                group_id="group",
                topics=[
                    _nested(
                        ApiKey.OFFSET_FETCH,
                        "OffsetFetchRequestGroup.OffsetFetchRequestTopics",
                        name="orders",
                        topic_id=messages.uuid_of(TOPICS["orders"]),
                        partition_indexes=[0],
                    )
                ],
            )
        ]
    },
    ApiKey.FIND_COORDINATOR: lambda: {"key_type": 0, "coordinator_keys": ["group"]},
    ApiKey.JOIN_GROUP: lambda: {
        "group_id": "group",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [],
    },
    ApiKey.HEARTBEAT: lambda: {"group_id": "group"},
    ApiKey.LEAVE_GROUP: lambda: {"group_id": "group", "members": []},
    ApiKey.SYNC_GROUP: lambda: {"group_id": "group", "assignments": []},
    ApiKey.DESCRIBE_GROUPS: lambda: {"groups": ["group"]},
    ApiKey.LIST_GROUPS: lambda: {"states_filter": [], "types_filter": []},
    ApiKey.API_VERSIONS: lambda: {"client_software_name": "x", "client_software_version": "1"},
    ApiKey.CREATE_TOPICS: lambda: {
        "topics": [
            _nested(
                ApiKey.CREATE_TOPICS,
                "CreatableTopic",
                name="new",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
        ]
    },
    ApiKey.DELETE_TOPICS: lambda: {
        "topics": [_nested(ApiKey.DELETE_TOPICS, "DeleteTopicState", name="orders", topic_id=None)]
    },
    ApiKey.INIT_PRODUCER_ID: lambda: {"transactional_id": None, "transaction_timeout_ms": 1},
    ApiKey.DELETE_RECORDS: lambda: {
        "topics": _partitions(
            ApiKey.DELETE_RECORDS, "DeleteRecordsTopic", "DeleteRecordsPartition", offset=1
        )
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda: {
        "topics": _partitions(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            "OffsetForLeaderTopic",
            "OffsetForLeaderPartition",
            partition=0,
            leader_epoch=0,
            current_leader_epoch=-1,
        )
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda: {
        "transactions": [
            _nested(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                "AddPartitionsToTxnTransaction",
                transactional_id="tx",
                producer_id=5,
                producer_epoch=0,
                verify_only=False,
                topics=[
                    _nested(
                        ApiKey.ADD_PARTITIONS_TO_TXN,
                        "AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic",
                        name="orders",
                        partitions=[0],
                    )
                ],
            )
        ]
    },
    ApiKey.ADD_OFFSETS_TO_TXN: lambda: {
        "transactional_id": "tx",
        "producer_id": 5,
        "producer_epoch": 0,
        "group_id": "group",
    },
    ApiKey.END_TXN: lambda: {
        "transactional_id": "tx",
        "producer_id": 5,
        "producer_epoch": 0,
        "committed": True,
    },
    ApiKey.WRITE_TXN_MARKERS: lambda: {
        "markers": [
            _nested(
                ApiKey.WRITE_TXN_MARKERS,
                "WritableTxnMarker",
                producer_id=5,
                producer_epoch=0,
                transaction_result=False,
                coordinator_epoch=0,
                transaction_version=0,
                topics=[
                    _nested(
                        ApiKey.WRITE_TXN_MARKERS,
                        "WritableTxnMarker.WritableTxnMarkerTopic",
                        name="orders",
                        partition_indexes=[0],
                    )
                ],
            )
        ]
    },
    ApiKey.TXN_OFFSET_COMMIT: lambda: {
        "transactional_id": "tx",
        "group_id": "group",
        "producer_id": 5,
        "producer_epoch": 0,
        "topics": _partitions(
            ApiKey.TXN_OFFSET_COMMIT,
            "TxnOffsetCommitRequestTopic",
            "TxnOffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=1,
            committed_metadata="",
        ),
    },
    ApiKey.DESCRIBE_PRODUCERS: lambda: {
        "topics": [
            _nested(ApiKey.DESCRIBE_PRODUCERS, "TopicRequest", name="orders", partition_indexes=[0])
        ]
    },
    ApiKey.DESCRIBE_TRANSACTIONS: lambda: {"transactional_ids": ["tx"]},
    ApiKey.LIST_TRANSACTIONS: lambda: {
        "state_filters": [],
        "producer_id_filters": [],
        "duration_filter": -1,
    },
    ApiKey.DESCRIBE_ACLS: lambda: {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    },
    ApiKey.CREATE_ACLS: lambda: {
        "creations": [
            _nested(
                ApiKey.CREATE_ACLS,
                "AclCreation",
                resource_type=2,
                resource_name="orders",
                resource_pattern_type=3,
                principal="User:bob",
                host="*",
                operation=3,
                permission_type=3,
            )
        ]
    },
    ApiKey.DELETE_ACLS: lambda: {
        "filters": [
            _nested(
                ApiKey.DELETE_ACLS,
                "DeleteAclsFilter",
                resource_type_filter=2,
                resource_name_filter="orders",
                pattern_type_filter=3,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
        ]
    },
    ApiKey.DESCRIBE_CONFIGS: lambda: {
        "resources": [
            _nested(
                ApiKey.DESCRIBE_CONFIGS,
                "DescribeConfigsResource",
                resource_type=2,
                resource_name="orders",
                configuration_keys=None,
            )
        ]
    },
    ApiKey.ALTER_CONFIGS: lambda: _configs(ApiKey.ALTER_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda: _configs(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, config_operation=0
    ),
    ApiKey.DESCRIBE_LOG_DIRS: lambda: {"topics": None},
    ApiKey.SASL_HANDSHAKE: lambda: {"mechanism": "SCRAM-SHA-256"},
    ApiKey.SASL_AUTHENTICATE: lambda: {"auth_bytes": b""},
    ApiKey.CREATE_PARTITIONS: lambda: {
        "topics": [
            _nested(
                ApiKey.CREATE_PARTITIONS,
                "CreatePartitionsTopic",
                name="orders",
                count=4,
                assignments=None,
            )
        ]
    },
    ApiKey.DELETE_GROUPS: lambda: {"groups_names": ["group"]},
    ApiKey.ELECT_LEADERS: lambda: {"election_type": 0, "topic_partitions": None},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda: {
        "topics": _partitions(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            "ReassignableTopic",
            "ReassignablePartition",
            partition_index=0,
            replicas=[1],
        )
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda: {"topics": None},
    ApiKey.OFFSET_DELETE: lambda: {
        "group_id": "group",
        "topics": _partitions(
            ApiKey.OFFSET_DELETE,
            "OffsetDeleteRequestTopic",
            "OffsetDeleteRequestPartition",
            partition_index=0,
        ),
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda: {"components": [], "strict": False},
    ApiKey.ALTER_CLIENT_QUOTAS: lambda: {
        "entries": [
            _nested(
                ApiKey.ALTER_CLIENT_QUOTAS,
                "EntryData",
                entity=[
                    _nested(
                        ApiKey.ALTER_CLIENT_QUOTAS,
                        "EntryData.EntityData",
                        entity_type="user",
                        entity_name="bob",
                    )
                ],
                ops=[
                    _nested(
                        ApiKey.ALTER_CLIENT_QUOTAS,
                        "EntryData.OpData",
                        key="producer_byte_rate",
                        value=1.0,
                        remove=False,
                    )
                ],
            )
        ]
    },
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda: {"users": None},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda: {
        "deletions": [],
        "upsertions": [
            _nested(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                "ScramCredentialUpsertion",
                name="bob",
                mechanism=1,
                iterations=4096,
                salt=b"s" * 16,
                salted_password=b"p" * 32,
            )
        ],
    },
    ApiKey.DESCRIBE_QUORUM: lambda: {"topics": []},
    ApiKey.UPDATE_FEATURES: lambda: {"feature_updates": []},
    ApiKey.UNREGISTER_BROKER: lambda: {"broker_id": 9},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda: {
        "group_id": "group",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda: {"group_ids": ["group"]},
    ApiKey.LIST_CONFIG_RESOURCES: lambda: {"resource_types": []},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda: {
        "topics": [_nested(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "TopicRequest", name="orders")],
        "response_partition_limit": 10,
        "cursor": None,
    },
}

HIGHEST = {key: versions.highest for key, versions in SUPPORTED.items()}
