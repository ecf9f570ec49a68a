"""Bring a cluster's topics in line with topics.toml: make, widen, configure; never delete or shrink."""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from odradek import Client, TlsOptions
from odradek.errors import OdradekError, TopicExists

CERTIFICATES = Path("/etc/odradek-tls")
CONNECT_S = 120.0
FIELDS = {"partitions", "replicas", "configs"}


def main() -> int:
    wanted = tomllib.loads(Path(sys.argv[1]).read_text())
    for name, topic in wanted.items():
        if strange := topic.keys() - FIELDS:
            print(f"{name}: {', '.join(sorted(strange))}; there are {', '.join(sorted(FIELDS))}")
            return 2
    try:
        return asyncio.run(apply(wanted))
    except OdradekError as error:
        print(f"the topics could not be applied: {error}")
        return 1


async def apply(wanted: dict[str, dict[str, Any]]) -> int:
    tls = TlsOptions(
        ca=CERTIFICATES / "ca.crt", cert=CERTIFICATES / "tls.crt", key=CERTIFICATES / "tls.key"
    )
    is_good = True
    async with Client(os.environ["ODRADEK_BOOTSTRAP"], tls=tls) as client:
        await client.connect(CONNECT_S)
        for name, topic in wanted.items():
            is_good &= await apply_one(client, name, topic)
    return 0 if is_good else 1


async def apply_one(client: Client, name: str, topic: dict[str, Any]) -> bool:
    """Whether it is as declared now."""
    partitions = int(topic.get("partitions", -1))
    replicas = int(topic.get("replicas", -1))
    configs = {key: str(value) for key, value in topic.get("configs", {}).items()}
    try:
        await client.admin.create_topic(
            name, partitions=partitions, replication_factor=replicas, configs=configs
        )
        print(f"{name}: made")
        return True
    except TopicExists:
        pass
    found = await client.admin.describe_topic(name)
    if partitions > len(found.partitions):
        await client.admin.add_partitions(name, partitions)
        print(f"{name}: {partitions} partitions, there were {len(found.partitions)}")
    if configs:
        await client.admin.alter_topic_configs(name, set=configs)
    wrong = []
    if 0 < partitions < len(found.partitions):
        wrong.append(f"has {len(found.partitions)} partitions, which cannot be taken away")
    has = len(found.partitions[0].replicas)
    if replicas not in (-1, has):
        wrong.append(f"has {has} replicas: reassign its partitions")
    print(f"{name}: {'; '.join(wrong) or 'is as declared'}")
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
