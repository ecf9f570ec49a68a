"""Applies topics.toml and access.toml to a cluster: adds ACLs, creates topics, adds partitions, and sets configs.

It deletes nothing. ACLs are added first, because clients that use the topics need them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from odradek import Client, TlsOptions
from odradek.admin.access import Acl, AclOperation, PatternType, ResourceType
from odradek.errors import OdradekError, TopicExists

CERTIFICATES = Path("/etc/odradek-tls")
CONNECT_S = 120.0
BROKERS_S = 60.0
POLL_S = 0.2
FIELDS = {"partitions", "replicas", "configs"}
RESOURCES = {
    "topics": ResourceType.TOPIC,
    "groups": ResourceType.GROUP,
    "transactional_ids": ResourceType.TRANSACTIONAL_ID,
}
RIGHT_FIELDS = {"principal", "operations", "cluster", *RESOURCES}
CLUSTER_NAME = "kafka-cluster"


def main() -> int:
    folder = Path(sys.argv[1])
    topics = tomllib.loads((folder / "topics.toml").read_text())
    try:
        entries = rights(tomllib.loads((folder / "access.toml").read_text()))
    except (KeyError, ValueError) as error:
        print(f"access.toml: {error}")
        return 2
    for name, topic in topics.items():
        if strange := topic.keys() - FIELDS:
            unknown, known = ", ".join(sorted(strange)), ", ".join(sorted(FIELDS))
            print(f"topics.toml: {name} has unknown keys: {unknown}; the keys are {known}")
            return 2
    try:
        return asyncio.run(apply(topics, entries))
    except OdradekError as error:
        print(f"ACLs and topics could not be applied: {error}")
        return 1


def rights(declared: dict[str, Any]) -> list[Acl]:
    """Return the ACLs that access.toml declares. Raises KeyError or ValueError for an invalid entry."""
    if strange := declared.keys() - {"allow"}:
        raise ValueError(
            f"unknown keys: {', '.join(sorted(strange))}; the file may only have [[allow]] tables"
        )
    entries = []
    for right in declared.get("allow", ()):
        if strange := right.keys() - RIGHT_FIELDS:
            raise ValueError(
                f"unknown keys in [[allow]]: {', '.join(sorted(strange))};"
                f" the keys are {', '.join(sorted(RIGHT_FIELDS))}"
            )
        named = [(kind, name) for field, kind in RESOURCES.items() for name in right.get(field, ())]
        if right.get("cluster"):
            named.append((ResourceType.CLUSTER, CLUSTER_NAME))
        if not named or not right["principal"].startswith("User:"):
            raise ValueError(
                f"the entry of {right['principal']} needs a principal User:NAME and at least one resource"
            )
        for kind, name in named:
            is_prefix = name != "*" and name.endswith("*")
            entries += [
                Acl(
                    resource_type=kind,
                    resource_name=name.removesuffix("*") if is_prefix else name,
                    principal=right["principal"],
                    operation=AclOperation[operation],
                    pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
                )
                for operation in right["operations"]
            ]
    return entries


async def apply(topics: dict[str, dict[str, Any]], entries: list[Acl]) -> int:
    tls = TlsOptions(
        ca=CERTIFICATES / "ca.crt", cert=CERTIFICATES / "tls.crt", key=CERTIFICATES / "tls.key"
    )
    is_good = True
    async with Client(os.environ["ODRADEK_BOOTSTRAP"], tls=tls) as client:
        await client.connect(CONNECT_S)
        await client.admin.create_acls(entries)
        print(f"the {len(entries)} ACLs of access.toml exist")
        replicas = [int(topic.get("replicas", 1)) for topic in topics.values()]
        await wait_for_brokers(client, max(replicas, default=1))
        for name, topic in topics.items():
            is_good &= await apply_one(client, name, topic)
    return 0 if is_good else 1


async def wait_for_brokers(client: Client, count: int, *, timeout_s: float = BROKERS_S) -> None:
    """Wait until `count` brokers are active, because at the first start of a cluster they register one after the other.

    After `timeout_s` the function returns without an error. Creating a topic then fails, and the error names the topic
    that has too few brokers.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while await active_brokers(client) < count:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)


async def active_brokers(client: Client) -> int:
    return sum(not broker.is_fenced for broker in (await client.admin.describe_cluster()).brokers)


async def apply_one(client: Client, name: str, topic: dict[str, Any]) -> bool:
    """Create or change one topic. Return whether the topic is as declared in topics.toml now."""
    partitions = int(topic.get("partitions", -1))
    replicas = int(topic.get("replicas", -1))
    configs = {key: str(value) for key, value in topic.get("configs", {}).items()}
    try:
        await client.admin.create_topic(
            name, partitions=partitions, replication_factor=replicas, configs=configs
        )
        print(f"{name}: created")
        return True
    except TopicExists:
        pass
    described = await client.admin.describe_topic(name)
    if partitions > len(described.partitions):
        await client.admin.add_partitions(name, partitions)
        print(f"{name}: partitions added, from {len(described.partitions)} to {partitions}")
    if configs:
        await client.admin.alter_topic_configs(name, set=configs)
    wrong = []
    if 0 < partitions < len(described.partitions):
        wrong.append(
            f"has {len(described.partitions)} partitions instead of {partitions}, and partitions cannot be removed"
        )
    current = len(described.partitions[0].replicas)
    if replicas not in (-1, current):
        wrong.append(f"has {current} replicas instead of {replicas}: reassign its partitions")
    print(f"{name}: {'; '.join(wrong) or 'is as declared'}")
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
