"""Each invariant of the simulator is violated if a working cluster is changed in the way that the invariant forbids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek_broker.partition import effects as fx
from odradek_broker.partition.effects import Role
from odradek_protocol.identity import BrokerId, Offset
from tests.sim.directed import Stage
from tests.sim.invariants import InvariantBroken
from tests.sim.scheduler import SECOND


def written() -> Stage:
    stage = Stage()
    stage.produce()
    stage.until(lambda: stage.hosted(2).replica.high_watermark > 10)
    return stage


def breaks(name: str, action: Callable[[], object]) -> None:
    with pytest.raises(InvariantBroken) as found:
        action()
    assert found.value.name == name


def test_i1_two_leaders_in_one_epoch() -> None:
    stage = written()
    effect = fx.RoleChanged(
        role=Role.LEADER, leader=BrokerId(2), leader_epoch=stage.state.leader_epoch
    )
    invariants = stage.cluster.invariants
    breaks("I1", lambda: invariants.before_effect(stage.life(2), stage.hosted(2), effect))


def test_i2_a_watermark_past_the_log_end() -> None:
    stage = written()
    log = stage.hosted(2).replica._log
    log.high_watermark = Offset(log.high_watermark + 1_000)
    breaks("I2", lambda: stage.run(100))


def test_i2_a_follower_that_shows_more_than_any_leader() -> None:
    stage = written()
    moved = fx.HighWatermarkMoved(high_watermark=Offset(10_000))
    invariants = stage.cluster.invariants
    breaks("I2", lambda: invariants.before_effect(stage.life(2), stage.hosted(2), moved))


def test_i3_an_in_sync_replica_that_holds_other_bytes() -> None:
    stage = written()
    stage.cluster.network.extra_delay_us[(1, 2)] = 200_000
    stage.run(300)
    oracle = stage.hosted(3).oracle
    original = oracle.catch_up

    def catch_up() -> None:
        original()
        oracle.known = {offset: -abs(value) for offset, value in oracle.known.items()}

    oracle.catch_up = catch_up  # type: ignore[method-assign]
    with pytest.raises(InvariantBroken) as found:
        stage.run(3_000)
    assert found.value.name in ("I3", "I4")


def test_i4_an_offset_that_changes_its_value() -> None:
    stage = written()
    invariants = stage.cluster.invariants
    end = 3
    invariants.committed[stage.partition][end - 1] = -1
    breaks("I4", lambda: invariants._expose(stage.life(2), stage.hosted(2), end))


def test_i5_a_leader_without_an_acknowledged_record() -> None:
    stage = written()
    stage.cluster.invariants.acknowledged(stage.partition, 1_000_000, (7,), leader_epoch=0)
    stage.cluster.brokers[1].crash()
    breaks("I5", lambda: stage.run(5_000))


def test_i7_an_electable_replica_that_holds_less() -> None:
    stage = written()
    invariants, hosted = stage.cluster.invariants, stage.hosted(1)
    breaks("I7", lambda: invariants._all_eligible_have(stage.partition, hosted.oracle, 10_000, 0))


def test_i7_a_replica_that_joins_with_less_than_was_exposed() -> None:
    stage = written()
    stage.cut_off(3, (1, 2))
    stage.until(lambda: stage.isr == (1, 2))
    stage.cluster.invariants._hw_max[stage.partition] = 1 << 40
    stage.join()
    breaks("I7", lambda: stage.run(5_000))


def test_i8_an_image_that_goes_back() -> None:
    stage = written()
    breaks("I8", lambda: stage.cluster.invariants.image_moves(stage.life(1), 5, 6))


def test_i9_a_cut_below_what_was_shown() -> None:
    stage = written()
    cut = fx.TruncateTo(end_offset=Offset(1))
    invariants = stage.cluster.invariants
    breaks("I9", lambda: invariants.before_effect(stage.life(2), stage.hosted(2), cut))


def test_i10_an_answer_after_the_lease() -> None:
    stage = written()
    stage.life(1).lease_sent_us = stage.scheduler.now_us - 3 * SECOND
    invariants = stage.cluster.invariants
    invariants.answer_leaves(stage.life(1), is_replicated=True)
    breaks("I10", lambda: invariants.answer_leaves(stage.life(1), is_replicated=False))
