"""The problems that `odradek cluster health` reports for unhealthy clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from odradek.admin.descriptions import (
    BrokerDescription,
    ClusterDescription,
    ConfigSource,
    ConfigValue,
    LogDirDescription,
    Partition,
    QuorumDescription,
    TopicDescription,
    Voter,
)
from odradek.admin.transaction_admin import (
    HangingFindings,
    HangingState,
    OldTransaction,
    TransactionIncident,
)
from odradek.cli.cluster import NAMED_MAX, examine
from odradek.errors import (
    AuthorizationFailed,
    BrokerUnreachable,
    OdradekError,
    UnsupportedOperation,
)
from odradek.partitions import TopicPartition


def broker(broker_id: int, *, is_fenced: bool = False) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker_id,
        broker_epoch=1,
        listeners=(),
        rack="",
        is_fenced=is_fenced,
        is_in_shutdown=False,
        leader_count=0,
    )


def topic(name: str, *partitions: Partition) -> TopicDescription:
    return TopicDescription(name=name, topic_id=b"t" * 16, is_internal=False, partitions=partitions)


def partition(index: int, leader: int, isr: tuple[int, ...]) -> Partition:
    return Partition(
        partition=index, leader_id=leader, leader_epoch=1, replicas=(1, 2, 3), isr=isr, elr=()
    )


class StandInAdmin:
    """An admin that returns the values that a test set, or raises them if they are exceptions."""

    def __init__(self) -> None:
        voters = tuple(
            Voter(controller_id=n, endpoint=f"c{n}:9095", log_end=7, heard_ms_ago=10)
            for n in (1, 2, 3)
        )
        self.quorum: Any = QuorumDescription(
            leader_id=1, term=1, commit_offset=7, answered_by=1, voters=voters
        )
        self.cluster: Any = ClusterDescription(
            cluster_id="c",
            active_controller_id=1,
            controller_epoch=1,
            controller_endpoints=(),
            brokers=(broker(1), broker(2), broker(3)),
        )
        self.topics: Any = [topic("orders", partition(0, 1, (1, 2, 3)))]
        self.findings: Any = HangingFindings(transactions=(), incidents=())
        self.log_dirs: Any = [LogDirDescription(broker_id=n, path="/data") for n in (1, 2, 3)]

    async def _or_raise(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def describe_quorum(self) -> Awaitable[Any]:
        return self._or_raise(self.quorum)

    def describe_cluster(self) -> Awaitable[Any]:
        return self._or_raise(self.cluster)

    def list_topics(self, *, include_internal: bool) -> Awaitable[Any]:
        assert include_internal
        return self._or_raise(self.topics)

    def describe_log_dirs(self) -> Awaitable[Any]:
        return self._or_raise(self.log_dirs)

    @property
    def transactions(self) -> StandInAdmin:
        return self

    def find_hanging(self) -> Awaitable[Any]:
        return self._or_raise(self.findings)

    async def describe_topic_configs(self, name: str) -> dict[str, ConfigValue]:
        value = ConfigValue(
            name="min.insync.replicas",
            value="2",
            source=ConfigSource.TOPIC,
            is_read_only=False,
            is_sensitive=False,
        )
        return {value.name: value}


@pytest.fixture
def admin() -> StandInAdmin:
    return StandInAdmin()


def examined(admin: Any) -> dict[str, Any]:
    return asyncio.run(examine(admin))


def test_a_cluster_without_problems_is_healthy(admin: StandInAdmin) -> None:
    facts = examined(admin)
    assert facts["healthy"] is True
    assert facts["problems"] == []
    assert (facts["brokers"], facts["partitions"]) == (3, 1)


def test_a_full_disk_is_named_with_broker_directory_and_room(admin: StandInAdmin) -> None:
    admin.log_dirs[1] = LogDirDescription(
        broker_id=2,
        path="/data",
        full_reason="No space left on device",
        total_bytes=120 << 20,
        usable_bytes=0,
    )
    (problem,) = examined(admin)["problems"]
    assert problem == (
        "broker 2: the data directory /data is full: No space left on device (0 of 120 MiB free)"
    )


def test_transactions_that_hang_or_are_damaged_are_named(admin: StandInAdmin) -> None:
    place = {"partition": TopicPartition("orders", 0), "producer_epoch": 0}
    states = {7: HangingState.ABORTED, 8: HangingState.LIVE, 9: HangingState.UNPROVEN}
    admin.findings = HangingFindings(
        transactions=tuple(
            OldTransaction(
                producer_id=producer_id, first_offset=3, open_for_ms=10, state=state, **place
            )
            for producer_id, state in states.items()
        ),
        incidents=tuple(
            TransactionIncident(
                kind=kind, producer_id=10, first_offset=5, is_commit=True, found_ms=0, **place
            )
            for kind in ("torn", "orphaned")
        ),
    )
    hanging, torn, orphaned = examined(admin)["problems"]
    assert hanging.startswith("orders-0: the transaction of producer 7 from offset 3 hangs")
    assert torn.endswith("offset 5 was committed in other partitions, but not in this one")
    assert orphaned.endswith("offset 5 lost its marker; the partition's leader committed it")


def test_a_broker_of_an_earlier_release_knows_nothing_of_transactions(admin: StandInAdmin) -> None:
    admin.findings = UnsupportedOperation("FindHanging is unknown")
    assert examined(admin)["healthy"] is True


def test_a_failed_disk_is_named_with_its_reason(admin: StandInAdmin) -> None:
    admin.log_dirs[0] = LogDirDescription(broker_id=1, path="/data", offline_reason="I/O error")
    (problem,) = examined(admin)["problems"]
    assert "broker 1: the data directory /data is offline: I/O error" in problem


def test_a_quorum_without_a_leader_is_told_without_asking_it_for_more(admin: StandInAdmin) -> None:
    admin.quorum = QuorumDescription(
        leader_id=-1, term=2, commit_offset=7, answered_by=3, voters=admin.quorum.voters
    )
    admin.cluster = AssertionError("must not be asked for")
    facts = examined(admin)
    (problem,) = facts["problems"]
    assert problem.startswith("no active controller: a majority of the controllers (1 at c1:9095")
    assert facts["brokers"] is None


def test_bad_partitions_are_named_those_without_a_leader_first(admin: StandInAdmin) -> None:
    admin.cluster = ClusterDescription(
        cluster_id="c",
        active_controller_id=1,
        controller_epoch=1,
        controller_endpoints=(),
        brokers=(broker(1), broker(2), broker(3, is_fenced=True)),
    )
    admin.log_dirs[2] = LogDirDescription(
        broker_id=3, error=BrokerUnreachable("h:1", "connection refused")
    )
    admin.topics = [
        topic("orders", partition(0, 1, (1, 2)), partition(1, -1, (3,)), partition(2, 1, (1,)))
    ]
    assert examined(admin)["problems"] == [
        "broker 3 is fenced: it is down, disconnected, or still starting",
        "orders-1 has no leader: none of its in-sync replicas is up (replicas 1,2,3)",
        "orders-0 is under-replicated: replicas 1,2 of 1,2,3 are in sync",
        "orders-2 is under-replicated: replicas 1 of 1,2,3 are in sync; acks=all is refused, since"
        " min.insync.replicas is 2",
    ]


def test_many_bad_partitions_are_counted(admin: StandInAdmin) -> None:
    admin.topics = [topic("wide", *(partition(n, 1, (1, 2)) for n in range(NAMED_MAX + 5)))]
    problems = examined(admin)["problems"]
    assert len(problems) == NAMED_MAX + 1
    assert problems[-1] == "and 5 more partitions"


def test_a_silent_controller_is_named(admin: StandInAdmin) -> None:
    silent = Voter(controller_id=3, endpoint="c3:9095", log_end=None, heard_ms_ago=61_000)
    admin.quorum = QuorumDescription(
        leader_id=1,
        term=1,
        commit_offset=7,
        answered_by=1,
        voters=(*admin.quorum.voters[:2], silent),
    )
    assert examined(admin)["problems"] == ["controller 3 at c3:9095 was last heard from 61 s ago"]


@pytest.mark.parametrize("asked", ["quorum", "cluster", "topics", "log_dirs"])
def test_who_may_not_look_is_not_told_that_all_is_well(admin: StandInAdmin, asked: str) -> None:
    setattr(admin, asked, AuthorizationFailed("User:alice needs DESCRIBE on CLUSTER"))
    facts = examined(admin)
    assert facts["healthy"] is False
    assert "User:alice needs DESCRIBE on CLUSTER" in facts["problems"][0]


@pytest.mark.parametrize("asked", ["quorum", "cluster", "topics", "log_dirs"])
def test_what_does_not_answer_in_time_is_a_problem_once(admin: StandInAdmin, asked: str) -> None:
    setattr(admin, asked, OdradekError("no answer in time"))
    assert examined(admin)["problems"] == ["no answer in time"]


def on_hosts(admin: StandInAdmin, hosts: dict[int, str]) -> None:
    brokers = tuple(replace(broker(n), host=host) for n, host in hosts.items())
    admin.cluster = replace(admin.cluster, brokers=brokers)


def test_controllers_that_share_a_host_are_a_warning(admin: StandInAdmin) -> None:
    hosts = {1: "a", 2: "a", 3: "b"}
    voters = tuple(replace(voter, host=hosts[voter.controller_id]) for voter in admin.quorum.voters)
    admin.quorum = replace(admin.quorum, voters=voters)
    facts = examined(admin)
    (warning,) = facts["warnings"]
    assert "controllers 1 and 2 share the host a" in warning
    assert facts["healthy"] is True


def test_a_cluster_on_one_machine_has_no_warnings(admin: StandInAdmin) -> None:
    voters = tuple(replace(voter, host="a") for voter in admin.quorum.voters)
    admin.quorum = replace(admin.quorum, voters=voters)
    on_hosts(admin, {1: "a", 2: "a", 3: "a"})
    assert examined(admin)["warnings"] == []


def test_partitions_with_two_replicas_on_one_host_are_a_warning_while_another_host_has_none(
    admin: StandInAdmin,
) -> None:
    on_hosts(admin, {1: "a", 2: "b", 3: "b"})
    assert examined(admin)["warnings"] == [], "there is no third host"
    on_hosts(admin, {1: "a", 2: "b", 3: "b", 4: "c"})
    (warning,) = examined(admin)["warnings"]
    assert "1 partition (orders-0) with at least two more replicas on one host" in warning


def test_the_warning_of_replicas_on_one_host_does_not_say_that_another_host_has_none(
    admin: StandInAdmin,
) -> None:
    on_hosts(admin, {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"})
    (topic,) = admin.topics
    (partition, *_) = topic.partitions
    partition = replace(partition, replicas=(1, 2, 3, 4), isr=(1, 2, 3, 4))
    admin.topics = (replace(topic, partitions=(partition,)),)
    (warning,) = examined(admin)["warnings"]
    assert "than on another host that has a free broker" in warning
