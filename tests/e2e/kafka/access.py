"""Creates users and access control entries through librdkafka's admin client."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it
PASSWORD = "secret"
MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


def done(futures: dict[Any, Any]) -> list[Any]:
    """Return the results of futures; raises the error of one that failed."""
    return [one.result(TIMEOUT_S) for one in futures.values()]


def make_user(admin: AdminClient, user: str, mechanism: str = "SCRAM-SHA-256") -> None:
    """Create a user whose password is PASSWORD."""
    info = ScramCredentialInfo(MECHANISMS[mechanism], 4096)
    upsertion = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    done(admin.alter_user_scram_credentials([upsertion]))


def make_topic(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    """Create a topic with one replica."""
    done(admin.create_topics([NewTopic(topic, partitions, 1)]))


def allow(
    admin: AdminClient,
    user: str,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> None:
    """Create an access control entry that allows the operation, or denies it."""
    entry = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
    done(admin.create_acls([entry]))


def static_members(bootstrap: str, group: str) -> list[str]:
    """Return the instance ids of a group's members."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [described] = done(admin.describe_consumer_groups([group]))
    return [one.group_instance_id for one in described.members]


def produce(bootstrap: str, topic: str, values: list[bytes], *, timestamps_ms: list[int]) -> None:
    """Write records with these timestamps to partition 0."""
    producer = ck.Producer({"bootstrap.servers": bootstrap})
    for value, timestamp_ms in zip(values, timestamps_ms, strict=True):
        producer.produce(topic, value, partition=0, timestamp=timestamp_ms)
    assert producer.flush(TIMEOUT_S) == 0
