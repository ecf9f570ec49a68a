"""A group migrates from the classic to the consumer protocol and back while its members stay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from odradek_broker.groups.settings import ConsumerGroupSettings, GroupSettings, MigrationPolicy
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.group_clients import (
    ALL,
    ClassicClient,
    ConsumerClient,
    Coordinator,
    Members,
    Style,
)

STYLES: list[Style] = ["eager", "cooperative"]


def settled_classic(style: Style, count: int = 2, policy: str = "bidirectional") -> Members:
    """Return a group with this many classic members, which share the partitions."""
    consumer = ConsumerGroupSettings(
        session_timeout_ms=45_000,
        heartbeat_interval_ms=5_000,
        members_max=100,
        default_assignor="uniform",
        migration_policy=MigrationPolicy(policy),
    )
    settings = GroupSettings(initial_rebalance_delay_ms=0, consumer=consumer)
    members = Members(Coordinator(settings))
    for number in range(count):
        members.classic(f"c{number}", style)
    members.settle()
    assert members.coordinator.kind == "classic"
    assert members.owned() == ALL
    return members


@pytest.mark.parametrize("style", STYLES)
def test_a_consumer_member_upgrades_a_classic_group_in_place(style: Style) -> None:
    members = settled_classic(style)
    ids = {c.member_id for c in members.living.values() if isinstance(c, ClassicClient)}
    members.consumer("k")
    members.act("k")
    assert members.coordinator.kind == "consumer"
    members.settle()
    described = members.coordinator.shard.table.describe("g")
    assert described.state == "Stable"
    assert {m.member_id for m in described.members if m.is_classic} == ids
    assert members.owned() == ALL
    assert {len(client.owned) for client in members.living.values()} == {3}


@pytest.mark.parametrize("style", STYLES)
def test_the_last_consumer_members_leaving_downgrades_it(style: Style) -> None:
    members = settled_classic(style)
    members.consumer("k")
    members.settle()
    members.living.pop("k").leave()
    assert members.coordinator.kind == "classic"
    members.settle()
    assert members.coordinator.state == "Stable"
    assert members.owned() == ALL
    errors = [e for c in members.living.values() for e in c.errors]
    assert set(errors) <= {ErrorCode.REBALANCE_IN_PROGRESS}


@pytest.mark.parametrize("style", STYLES)
def test_members_roll_over_one_by_one_and_back(style: Style) -> None:
    members = settled_classic(style, count=3)
    for number in range(3):
        members.living.pop(f"c{number}").leave()
        members.consumer(f"k{number}")
        members.settle()
        assert members.owned() == ALL
    assert members.coordinator.kind == "consumer"
    for number in range(3):
        members.living.pop(f"k{number}").leave()
        members.classic(f"c{number}", style)
        members.settle()
        assert members.owned() == ALL
    assert members.coordinator.kind == "classic"


def test_a_cooperative_member_goes_on_with_what_it_keeps() -> None:
    members = settled_classic("cooperative", count=1)
    (client,) = members.living.values()
    members.consumer("k")
    for _ in range(8):
        members.act("k")
        members.act("c0")
        assert len(client.owned) >= len(ALL) // 2
    assert ErrorCode.UNKNOWN_MEMBER_ID not in client.errors


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_group_that_may_not_be_upgraded_stays_as_it_is(policy: str) -> None:
    members = settled_classic("eager", policy=policy)
    client = members.consumer("k")
    members.act("k")
    assert client.errors == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert members.coordinator.kind == "classic"


@pytest.mark.parametrize("policy", ["upgrade"])
def test_a_group_that_may_not_be_downgraded_keeps_classic_members(policy: str) -> None:
    members = settled_classic("eager", policy=policy)
    members.consumer("k")
    members.settle()
    members.living.pop("k").leave()
    members.settle()
    assert members.coordinator.kind == "consumer"
    assert members.owned() == ALL


def test_a_connect_cluster_is_not_upgraded() -> None:
    members = Members()
    client = members.classic("w", "eager")
    handle = members.coordinator.shard.handle_join
    members.coordinator.shard.table.groups.clear()

    def as_worker(request_id, join, catalog, **times):  # type: ignore[no-untyped-def]
        return handle(request_id, structs.replace(join, protocol_type="connect"), catalog, **times)

    for _ in range(2):
        request_id = members.coordinator.request()
        join = structs.replace(_some_join(client), member_id=client.member_id)
        members.coordinator.take(as_worker(request_id, join, None, now_ms=0, wall_ms=0))
        client.member_id = members.coordinator.answers[request_id].member_id
    late = members.consumer("k")
    late.act()
    assert late.errors == [ErrorCode.GROUP_ID_NOT_FOUND]


def _some_join(client: ClassicClient):  # type: ignore[no-untyped-def]
    from odradek_broker.groups.messages import JoinGroup

    return JoinGroup(
        group_id="g",
        member_id="",
        instance_id=None,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("default", b"\0"),),
        client_id=client.name,
        client_host="h",
        new_member_id="w-1",
        requires_known_member=True,
        may_skip_assignment=True,
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("within", [False, True])
def test_a_coordinators_death_between_and_within_the_steps_of_an_upgrade(
    style: Style, within: bool
) -> None:
    for deaths_after in range(12):
        members = settled_classic(style)
        members.consumer("k")
        names = ["k", "c0", "c1"] * 4
        for name in names[:deaths_after]:
            members.act(name)
        if within:
            members.act(names[deaths_after % 3], coordinator_dies=True)
        else:
            members.coordinator.die()
        members.settle()
        assert members.owned() == ALL
        assert members.coordinator.kind == "consumer"
        members.living.pop("k").leave()
        members.coordinator.die()
        members.settle()
        assert members.coordinator.kind == "classic"
        assert members.owned() == ALL


def test_a_downgraded_group_that_is_loaded_lets_everyone_join_again() -> None:
    members = settled_classic("eager")
    members.consumer("k")
    members.settle()
    members.living.pop("k").leave()
    members.coordinator.die()
    assert members.coordinator.state == "PreparingRebalance"
    members.settle()
    assert members.owned() == ALL


def test_who_waits_in_a_join_is_let_into_the_new_group() -> None:
    members = settled_classic("eager")
    late = members.classic("late", "eager")
    members.act("late")
    members.act("late")  # waits for the others
    members.consumer("k")
    members.act("k")
    members.act("late")
    assert late.generation > 0
    assert late.errors == []
    members.settle()
    assert members.owned() == ALL


def test_what_cooperative_members_hold_in_a_rebalance_is_not_given_away() -> None:
    members = settled_classic("cooperative")
    members.classic("late", "cooperative")
    for name in ("late", "late", "c0", "c1"):  # its id, its join; theirs
        if members.living[name].phase == "stable":
            members.act(name)  # told to join again
        members.act(name)
    assert members.coordinator.state == "CompletingRebalance"
    members.consumer("k")
    members.act("k")
    held = set().union(*(c.owned for n, c in members.living.items() if n != "k"))
    assert held == ALL
    assert not members.living["k"].owned
    members.settle()
    assert members.owned() == ALL


def test_commits_at_the_old_generation_count_until_a_member_moves_on() -> None:
    members = settled_classic("cooperative")
    client = members.living["c0"]
    assert isinstance(client, ClassicClient)
    before = client.generation
    members.consumer("k")
    members.act("k")
    assert client.commit() is ErrorCode.NONE
    members.settle()
    assert client.generation > before
    assert client.commit() is ErrorCode.NONE
    stale = members.coordinator.commit(client.member_id, before)
    assert stale is ErrorCode.ILLEGAL_GENERATION
    consumer = members.living["k"]
    assert isinstance(consumer, ConsumerClient)
    assert members.coordinator.commit(consumer.name, consumer.epoch - 1) is (
        ErrorCode.STALE_MEMBER_EPOCH
    )
    members.living.pop("k").leave()
    assert client.commit() is ErrorCode.NONE
    assert members.coordinator.commit(consumer.name, consumer.epoch) is not ErrorCode.NONE


def test_a_static_member_changes_its_protocol_both_ways() -> None:
    members = Members()
    members.classic("s", "eager", instance_id="i")
    members.classic("t", "eager", instance_id="j")
    members.settle()
    members.living.pop("s")  # static members of the classic protocol do not leave
    members.consumer("s", instance_id="i")
    members.settle()
    assert members.coordinator.kind == "consumer"
    assert members.owned() == ALL
    assert len(members.coordinator.shard.table.describe("g").members) == 2
    members.living.pop("s").leave()
    assert members.coordinator.kind == "consumer"
    members.classic("s", "eager", instance_id="i")
    members.settle()
    assert members.coordinator.kind == "classic"
    assert members.owned() == ALL
    assert len(members.coordinator.shard.table.describe("g").members) == 2


def test_a_member_that_does_not_sync_is_taken_out_after_its_rebalance_timeout() -> None:
    members = settled_classic("eager", count=1)
    members.consumer("k")
    members.act("k")
    members.act("c0")  # told to join again
    silent = members.living.pop("c0")
    assert isinstance(silent, ClassicClient)
    for _ in range(61):
        members.coordinator.tick(1_000)
        members.act("k")
        if silent.phase == "join":
            beat = replace(silent, phase="stable")
            beat.act()  # its heartbeats go on, it never joins
    members.settle()
    assert members.owned() == ALL
    assert members.coordinator.kind == "consumer"


@given(st.randoms(use_true_random=False), st.sampled_from(STYLES), st.integers(10, 150))
def test_any_interleaving_keeps_partitions_apart_and_settles(
    chance: random.Random, style: Style, steps: int
) -> None:
    members = Members()
    for _ in range(steps):
        name = f"m{chance.randrange(4)}"
        client = members.living.get(name)
        match chance.randrange(24):
            case 0 if client is not None:
                members.living.pop(name).leave()
            case 1:
                members.living.pop(name, None)  # dies, unheard
            case 2 if client is not None:
                members.act(name, coordinator_dies=True)
            case 5:
                members.coordinator.die()
            case 3:
                members.coordinator.tick(chance.randrange(200))
            case 4 if client is not None:
                members.act(name, loses_answer=True)
            case _ if client is not None:
                members.act(name)
            case _ if chance.random() < 0.5:
                members.consumer(f"{name}")
                members.act(name)
            case _:
                members.classic(name, style)
                members.act(name)
        members.check()
    if not members.living:
        members.classic("survivor", style)
    for _ in range(60):  # the dead time out, the living do not
        members.coordinator.tick(1_000)
        for name in list(members.living):
            members.act(name)
    members.settle()
    assert members.owned() == ALL
    assert members.coordinator.state == "Stable"
    has_consumer = any(isinstance(c, ConsumerClient) for c in members.living.values())
    assert members.coordinator.kind == ("consumer" if has_consumer else "classic")
    before = members.coordinator.shard.table.describe("g")
    members.coordinator.die()
    assert members.coordinator.shard.table.describe("g") == before
