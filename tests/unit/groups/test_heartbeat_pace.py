"""The coordinator asks members for frequent heartbeats while that shortens a rebalance, and for
rare ones otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek_broker.groups.consumer_group import ConsumerGroup, HeartbeatPace
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.settings import GroupSettings
from tests.unit.groups.test_consumer_group import Group

CALM_MS, RESTLESS_MS = 3_000, 500


def calm_at(now_ms: int) -> HeartbeatPace:
    """Return the heartbeat pace of a group that is stable, and whose last epoch began at 0."""
    pace = HeartbeatPace(calm_interval_ms=CALM_MS, restless_interval_ms=RESTLESS_MS)
    pace.epoch_is(1, now_ms=0)
    pace.look(is_stable=True, session_ends_ms=now_ms + 40_000, now_ms=now_ms)
    return pace


def test_a_group_is_calm_two_intervals_after_its_last_change() -> None:
    assert calm_at(2 * CALM_MS - 1).interval_ms(3) == RESTLESS_MS
    pace = calm_at(2 * CALM_MS)
    assert pace.interval_ms(3) == CALM_MS
    pace.epoch_is(2, now_ms=7_000)
    assert pace.interval_ms(3) == RESTLESS_MS


def test_a_group_that_is_not_reconciled_is_restless() -> None:
    pace = calm_at(60_000)
    pace.look(is_stable=False, session_ends_ms=100_000, now_ms=60_000)
    assert pace.interval_ms(3) == RESTLESS_MS


def test_a_session_about_to_end_makes_the_others_listen() -> None:
    pace = calm_at(60_000)
    pace.look(is_stable=True, session_ends_ms=60_000 + 2 * CALM_MS, now_ms=60_000)
    assert pace.interval_ms(3) == RESTLESS_MS


def test_large_groups_do_not_flood_the_coordinator() -> None:
    pace = calm_at(0)
    assert pace.interval_ms(200) == 1_000
    assert pace.interval_ms(10_000) == CALM_MS


def test_members_are_told_the_pace() -> None:
    group = Group()
    assert group.beat("m1").heartbeat_interval_ms == RESTLESS_MS
    group.settle()
    group.now_ms += 10_000
    group.shard.tick(now_ms=group.now_ms, wall_ms=0)
    assert group.beat("m1").heartbeat_interval_ms == CALM_MS
    assert group.beat("m2").heartbeat_interval_ms == RESTLESS_MS
    assert group.beat("m1").heartbeat_interval_ms == RESTLESS_MS


def session_of(group: Group, name: str) -> tuple[int, int]:
    """Return the heartbeat interval of a stable group, and the silence after which this member is
    removed.
    """
    group.settle()
    for _ in range(10):
        group.now_ms += 1_000
        group.beat(name)
        group.take_all(group.shard.tick(now_ms=group.now_ms, wall_ms=0))
    interval_ms = group.beat(name).heartbeat_interval_ms
    present = group.shard.table.groups["g"]
    assert isinstance(present, ConsumerGroup)
    silence_ms = 0
    while name in present.state.members:
        silence_ms += 500
        group.take_all(group.shard.tick(now_ms=group.now_ms + silence_ms, wall_ms=0))
    return interval_ms, silence_ms


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, (3_000, 45_000)),
        ({"consumer.heartbeat.interval.ms": "1000"}, (1_000, 45_000)),
        ({"consumer.session.timeout.ms": "20000"}, (3_000, 20_000)),
        ({"consumer.session.timeout.ms": "6000"}, (2_000, 6_000)),
    ],
)
def test_a_group_may_have_a_session_and_a_heartbeat_of_its_own(
    configs: dict[str, str], expected: tuple[int, int]
) -> None:
    set_: dict[str, dict[str, str]] = {}
    consumer = replace(GroupSettings().consumer, configs_of=lambda name: set_.get(name, {}))
    group = Group(shard=GroupShard(settings=GroupSettings(consumer=consumer)))
    group.beat("m1")
    set_["g"] = configs  # after the group was made: they may change at any time
    assert session_of(group, "m1") == expected
