"""When an internal error takes one replica offline, another replica becomes the leader, and the broker still serves its
other partitions.
"""

from __future__ import annotations

import pytest

from odradek_broker.partition import events
from odradek_broker.partition.effects import Role
from tests.sim.directed import Stage


@pytest.mark.parametrize("broken", [1, 2], ids=["leader", "follower"])
def test_a_partition_goes_on_without_a_replica_that_a_bug_ended(broken: int) -> None:
    stage = Stage()
    producer = stage.produce()
    stage.until(lambda: stage.log_end(1) > 10)
    assert stage.state.leader == 1
    stage.step(broken, events.BugFound(reason="arranged"))
    others = tuple(b for b in (1, 2, 3) if b != broken)
    stage.until(lambda: stage.isr == others, limit_ms=1_000)
    assert stage.state.leader == others[0]
    end = stage.log_end(others[0])
    stage.until(lambda: stage.hosted(others[0]).replica.high_watermark > end + 20)
    assert stage.hosted(broken).replica.role is Role.FAILED
    assert stage.is_live(broken), "its broker still serves its other partitions"
    stage.cluster.brokers[broken].crash()
    stage.cluster.brokers[broken].start()
    stage.until(lambda: len(stage.isr) == 3)
    producer.is_stopped = True
    stage.run(2_000)
    assert stage.log_end(broken) == stage.log_end(others[0])


def test_a_new_controller_hears_of_it_with_the_next_heartbeat() -> None:
    stage = Stage()
    stage.produce()
    stage.until(lambda: stage.log_end(1) > 10)
    stage.step(1, events.BugFound(reason="arranged"))
    stage.until(lambda: stage.isr == (2, 3))
    active = next(c for c in stage.cluster.controllers.values() if c.core.is_active)
    active.crash()
    stage.until(lambda: any(c.core.is_active for c in stage.cluster.controllers.values()))
    stage.run(2_000)
    assert stage.isr == (2, 3)
    assert stage.is_live(1)
