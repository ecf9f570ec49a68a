"""Conversations of a user without rights, and of a user who may describe a topic but not change it."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.records import batch
from tests.e2e.kafka.same_answers.wire import Login

BOB: Final = Login("bob", "secret")
_ITERATIONS: Final = 4096
_SALT: Final = b"s" * 16


def create_user(talk: Conversation) -> None:
    """Create a credential for the user bob, who has no rights."""
    password = hashlib.pbkdf2_hmac("sha256", BOB.password.encode(), _SALT, _ITERATIONS)
    upsertion = {
        "name": BOB.user,
        "mechanism": 1,
        "iterations": _ITERATIONS,
        "salt": _SALT,
        "salted_password": password,
    }
    talk.prepare(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[upsertion])


def _requests(topic: str, topic_id: Any) -> dict[ApiKey, dict[str, Any]]:
    """Return a request of each API that names one topic, one group and one transactional id."""
    names = {"name": topic, "topic_id": topic_id}
    entity = [{"entity_type": "user", "entity_name": "u"}]
    acl = {
        "resource_type": 2,
        "resource_name": topic,
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    acl_filter = {
        "resource_type_filter": 2,
        "resource_name_filter": topic,
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    txn = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0}
    member = {"group_id": "g", "member_id": "m"}
    config = {"name": "retention.ms", "value": "1", "config_operation": 0}
    return {
        ApiKey.METADATA: {"topics": [{"name": topic, "topic_id": bytes(16)}]},
        ApiKey.PRODUCE: {
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [names | {"partition_data": [{"index": 0, "records": batch("a")}]}],
        },
        ApiKey.FETCH: {
            "replica_id": -1,
            "replica_state": {"replica_id": -1, "replica_epoch": -1},
            "max_wait_ms": 100,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": topic,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
        },
        ApiKey.LIST_OFFSETS: {
            "replica_id": -1,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
                    ],
                }
            ],
        },
        ApiKey.OFFSET_COMMIT: {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [names | {"partitions": [offset]}],
        },
        ApiKey.FIND_COORDINATOR: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
        ApiKey.JOIN_GROUP: member
        | {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        ApiKey.HEARTBEAT: member | {"generation_id": 1},
        ApiKey.LEAVE_GROUP: member | {"members": [{"member_id": "m"}]},
        ApiKey.SYNC_GROUP: member
        | {"generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"},
        ApiKey.DESCRIBE_GROUPS: {"groups": ["g"]},
        ApiKey.LIST_GROUPS: {},
        ApiKey.CREATE_TOPICS: {
            "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 1000,
        },
        ApiKey.DELETE_TOPICS: {
            "topics": [{"name": topic, "topic_id": bytes(16)}],
            "topic_names": [topic],
            "timeout_ms": 1000,
        },
        ApiKey.DELETE_RECORDS: {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout_ms": 1000,
        },
        ApiKey.INIT_PRODUCER_ID: {
            "transactional_id": "tx",
            "transaction_timeout_ms": 1000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        ApiKey.ADD_OFFSETS_TO_TXN: txn | {"group_id": "g"},
        ApiKey.END_TXN: txn | {"committed": True},
        ApiKey.WRITE_TXN_MARKERS: {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": [{"name": topic, "partition_indexes": [0]}],
                }
            ]
        },
        ApiKey.TXN_OFFSET_COMMIT: txn
        | {
            "group_id": "g",
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [offset]}],
        },
        ApiKey.DESCRIBE_ACLS: acl_filter,
        ApiKey.CREATE_ACLS: {"creations": [acl]},
        ApiKey.DELETE_ACLS: {"filters": [acl_filter]},
        ApiKey.DESCRIBE_CONFIGS: {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configuration_keys": ["retention.ms"],
                }
                for kind, name in ((2, topic), (2, "elsewhere"), (4, "1"), (32, "g"))
            ]
        },
        ApiKey.ALTER_CONFIGS: {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "value": "1"}],
                }
                for kind, name in ((2, topic), (2, "elsewhere"), (4, "1"))
            ]
        },
        ApiKey.DESCRIBE_LOG_DIRS: {"topics": [{"topic": topic, "partitions": [0]}]},
        ApiKey.CREATE_PARTITIONS: {
            "topics": [{"name": topic, "count": 9, "assignments": None}],
            "timeout_ms": 1000,
        },
        ApiKey.DELETE_GROUPS: {"groups_names": ["g"]},
        ApiKey.ELECT_LEADERS: {
            "election_type": 0,
            "topic_partitions": [{"topic": topic, "partitions": [0]}],
            "timeout_ms": 1000,
        },
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configs": [config]}
                for kind, name in ((2, topic), (2, "elsewhere"), (4, "1"))
            ]
        },
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
            "timeout_ms": 1000,
        },
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout_ms": 1000},
        ApiKey.OFFSET_DELETE: {
            "group_id": "g",
            "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}],
        },
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": [], "strict": False},
        ApiKey.ALTER_CLIENT_QUOTAS: {
            "entries": [
                {
                    "entity": entity,
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ]
        },
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": [{"name": "u"}]},
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"deletions": [{"name": "u", "mechanism": 1}]},
        ApiKey.DESCRIBE_QUORUM: {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 7}]}]
        },
        ApiKey.UPDATE_FEATURES: {
            "feature_updates": [{"feature": "nonsense", "max_version_level": 1, "upgrade_type": 1}],
            "timeout_ms": 1000,
        },
        ApiKey.DESCRIBE_CLUSTER: {
            "include_cluster_authorized_operations": True,
            "endpoint_type": 1,
        },
        ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": topic, "partition_indexes": [0]}]},
        ApiKey.UNREGISTER_BROKER: {"broker_id": 99},
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["tx"]},
        ApiKey.LIST_TRANSACTIONS: {},
        ApiKey.CONSUMER_GROUP_HEARTBEAT: member
        | {
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        },
        ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": ["g"]},
        ApiKey.LIST_CONFIG_RESOURCES: {},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
            "topics": [{"name": topic}],
            "response_partition_limit": 10,
            "cursor": None,
        },
    }


def no_rights(talk: Conversation) -> None:
    """Send every request as a user who may do nothing, for a topic that exists and for one that does not."""
    topic = talk.topic("t")
    create_user(talk)
    for noun, name, topic_id in (
        ("topic", topic, talk.topic_id(topic)),
        ("missing topic", "nowhere", b"\1" * 16),
    ):
        for key, fields in _requests(name, topic_id).items():
            talk.ask(f"without rights, {noun}", key, **fields)


def may_describe(talk: Conversation) -> None:
    """Send every request as a user who may describe a topic, the cluster, a group and a transactional id."""
    topic = talk.topic("t")
    create_user(talk)
    names = ((2, topic), (4, "kafka-cluster"), (3, "g"), (5, "tx"))
    entries = [
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": 3,
            "principal": "User:bob",
            "host": "*",
            "operation": 8,
            "permission_type": 3,
        }
        for kind, name in names
    ]
    talk.prepare(ApiKey.CREATE_ACLS, 3, creations=entries)
    for key, fields in _requests(topic, talk.topic_id(topic)).items():
        talk.ask("with DESCRIBE", key, **fields)
    filters = [
        {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": "User:bob",
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
    ]
    talk.prepare(ApiKey.DELETE_ACLS, 3, filters=filters)


TALKS = (no_rights, may_describe)
