"""The client id of a program: its quotas, the messages about these quotas, and the descriptions of groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import odradek.sync
from odradek import Client
from odradek.admin.access import Quota
from odradek.errors import InvalidConfig
from odradek_broker.rpc import group_wire
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

RECORDS = [random.Random(0).randbytes(500).hex().encode()] * 2_000
BYTES_A_SECOND = 20 * 1024


@contextlib.asynccontextmanager
async def consumer_quota(client: Client, client_id: str) -> AsyncIterator[None]:
    """For the block, limit how much the clients with this id may read in a second."""
    quota = Quota(entity={"client-id": client_id}, key="consumer_byte_rate", value=BYTES_A_SECOND)
    await client.admin.alter_quotas([quota])
    try:
        yield
    finally:
        await client.admin.alter_quotas([Quota(entity=quota.entity, key=quota.key, value=None)])


async def filled(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=1, replication_factor=1)
    async with client.producer(compression="none") as producer:
        await producer.send_many(topic, RECORDS)


async def test_a_quota_of_a_client_id_delays_that_client_alone_and_is_logged(
    client: Client, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(client, topic)

    async def read(client_id: str) -> bool:
        """Return whether the quota delays a client that reads the topic."""
        async with (
            Client(bootstrap, client_id=client_id) as reading,
            reading.consumer(topic, auto_offset_reset="earliest") as consumer,
        ):
            count = 0
            while count < len(RECORDS):
                count += len(await consumer.getmany(30_000, max_records=100))
                if consumer._fetcher.is_throttled:
                    return True
        return False

    async with consumer_quota(client, "reports"):
        assert await asyncio.wait_for(read("reports"), 60)
        assert "A consumer quota limits the rate" in caplog.text
        assert not await asyncio.wait_for(read("others"), 60)


async def test_a_command_that_a_quota_delays_prints_what_arrived_and_the_reason(
    client: Client, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    await filled(client, topic)
    output = tmp_path / "output"
    async with consumer_quota(client, "odradek"):
        with output.open("wb") as file:
            command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "odradek.cli.main", "consume", topic),
                *("--from-beginning", "--exit-at-end"),
                stdout=file,
                stderr=subprocess.PIPE,
                env=os.environ | {"ODRADEK_BOOTSTRAP": bootstrap},
            )
        assert command.stderr is not None
        try:
            reason = (await asyncio.wait_for(command.stderr.readline(), 60)).decode()
        finally:
            command.kill()
            await command.communicate()
    assert reason == (
        "odradek: waiting: a consumer quota limits the rate (`odradek quota list` shows quotas)\n"
    )
    assert output.read_bytes().startswith(RECORDS[0] + b"\n")


async def test_a_group_shows_the_client_ids_of_its_members(
    client: Client, bootstrap: str, topic: str
) -> None:
    await client.admin.create_topic(topic, partitions=2, replication_factor=1)
    async with Client(bootstrap, client_id="reports") as named:
        first = named.consumer(topic, group=topic)
        second = client.consumer(topic, group=topic)
        async with first, second, asyncio.timeout(60):
            while not (first.assignment() and second.assignment()):
                await first.getmany(timeout_ms=20)
                await second.getmany(timeout_ms=20)
            described = await client.admin.describe_group(topic)
    assert sorted(member.client_id for member in described.members) == ["odradek", "reports"]


@pytest.mark.parametrize("client_id", ["", "a\nb", "böse", "x" * 256])
def test_a_client_id_that_cannot_be_a_header_is_refused(client_id: str) -> None:
    with pytest.raises(InvalidConfig, match="printable ASCII"):
        odradek.sync.Client("127.0.0.1:9", client_id=client_id)


def test_a_member_behind_an_older_broker_has_the_default_client_id() -> None:
    old = pb.GroupHeartbeatRequest(group_id="g", member_id="m", principal="User:alice")
    assert group_wire.beat(old).client_id == "odradek"
