"""The rows of `odradek top` contain only values that both of its reads of the cluster confirm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    Partition,
    QuorumDescription,
    TopicDescription,
)
from odradek.cli.top import Look, snapshot
from odradek.cli.top import look as look_at
from odradek.errors import RequestTimedOut
from odradek.partitions import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
BILLING = GroupDescription(
    group="billing",
    state="Stable",
    type="consumer",
    protocol="",
    epoch=1,
    coordinator_id=1,
    members=(),
)


def cluster(*, is_in_shutdown: bool = False) -> ClusterDescription:
    broker = BrokerDescription(
        broker_id=1,
        broker_epoch=1,
        listeners=(),
        rack="",
        leader_count=2,
        is_fenced=False,
        is_in_shutdown=is_in_shutdown,
    )
    return ClusterDescription(
        cluster_id="c",
        active_controller_id=1,
        controller_epoch=1,
        controller_endpoints=(),
        brokers=(broker,),
    )


def topic() -> TopicDescription:
    partitions = tuple(
        Partition(partition=n, leader_id=1, leader_epoch=1, replicas=(1,), isr=(1,)) for n in (0, 1)
    )
    return TopicDescription(name="orders", topic_id=b"", is_internal=False, partitions=partitions)


def look(at_s: float, **fields: Any) -> Look:
    return Look(at_s=at_s, **{"cluster": cluster(), "topics": (topic(),), **fields})


def test_a_partition_that_had_no_leader_before_does_not_count_as_written() -> None:
    before = look(0.0, ends={FIRST: 100})
    now = look(2.0, ends={FIRST: 120, SECOND: 1_000_000})
    assert snapshot(before, now)["topics"][0]["records per s"] == 10.0


def test_a_broker_that_was_silent_before_does_not_seem_to_grow() -> None:
    silent = LogDirDescription(broker_id=1, path="", error=RequestTimedOut("timed out"))
    sized = LogDirDescription(broker_id=1, path="/data", partition_bytes={FIRST: 1 << 30})
    (row,) = snapshot(look(0.0, directories=(silent,)), look(2.0, directories=(sized,)))["brokers"]
    assert (row["bytes"], row["grows per s"]) == (1 << 30, None)
    (row,) = snapshot(look(0.0, directories=(sized,)), look(2.0, directories=(sized,)))["brokers"]
    assert row["grows per s"] == 0.0


def test_a_broker_with_a_full_disk_is_not_said_to_stop() -> None:
    """It hands its leaderships over as one that shuts down does."""
    leaving = cluster(is_in_shutdown=True)
    full = LogDirDescription(broker_id=1, path="/data", full_reason="no space")
    (row,) = snapshot(look(0.0), look(2.0, cluster=leaving, directories=(full,)))["brokers"]
    assert row["state"] == "disk full"
    (row,) = snapshot(look(0.0), look(2.0, cluster=leaving))["brokers"]
    assert row["state"] == "stopping"


def test_a_group_whose_ends_or_offsets_are_not_known_has_no_lag() -> None:
    known = look(0.0, ends={FIRST: 100}, groups={"billing": (BILLING, {FIRST: 40})})
    without_ends = look(2.0, groups={"billing": (BILLING, {FIRST: 40})})
    without_offsets = look(2.0, ends={FIRST: 100}, groups={"billing": (BILLING, None)})
    (row,) = snapshot(known, known)["groups"]
    assert (row["lag"], row["committed per s"]) == (60, 0.0)
    (row,) = snapshot(known, without_ends)["groups"]
    assert row["lag"] is None
    (row,) = snapshot(known, without_offsets)["groups"]
    assert (row["lag"], row["committed per s"]) == (None, None)


class WithoutController:
    """An admin of a cluster whose controllers have no leader: a read of offsets or of a group would never end."""

    async def describe_quorum(self) -> QuorumDescription:
        return QuorumDescription(answered_by=3, leader_id=-1, term=1, commit_offset=1, voters=())

    async def list_topics(self, *, include_internal: bool) -> list[TopicDescription]:
        return [topic()]

    async def describe_log_dirs(self, *, include_partitions: bool) -> list[LogDirDescription]:
        return []

    async def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group="billing", state="Empty", type="consumer", protocol_type="")]


async def test_without_a_controller_nothing_is_asked_that_would_wait() -> None:
    client: Any = SimpleNamespace(admin=WithoutController())
    seen = await look_at(client)
    assert seen.groups == {"billing": (None, None)}
    assert seen.problem == "no active controller: `odradek why` shows the cause"
