"""Bounds on the work of the controller for one event, because a long event would cost it the
leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek_metadata_quorum.controller import ControllerSettings, brokers, leaders, workspace
from odradek_metadata_quorum.controller.election import settle
from odradek_protocol.metadata.image import MetadataImage, PartitionState
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange, RestartClass
from tests.unit.controller.cluster import CLUSTER_ID, Cluster


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the number of partitions that each tick of `ticks` has examined."""
    counts = [0]

    def counted(*arguments: Any, **named: Any) -> PartitionChange | None:
        counts[-1] += 1
        return settle(*arguments, **named)

    monkeypatch.setattr(workspace, "settle", counted)
    return counts


def ticks(found: Cluster, looked_at: list[int]) -> None:
    """Run a tick, and the ticks that must follow it at once."""
    looked_at.clear()
    while not looked_at or found.controller.is_repairing:
        looked_at.append(0)
        for decision in found.controller.tick(found.now_ms):
            found.commit(decision)


def test_one_tick_looks_at_few_partitions_and_all_ticks_at_each_of_them_once(
    looked_at: list[int],
) -> None:
    """A tick as long as an election timeout would depose this controller, and the next one, too."""
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_batch_max=10))
    found.start(1, 2, 3)
    found.create(partitions=600, replicas=3)
    found.break_stream(1)
    found.now_ms += found.settings.grace_ms
    ticks(found, looked_at)
    assert all(1 not in state.isr for state in found.image.partitions())
    assert max(looked_at) <= 2 * 10, "a fencing and a piece of the repair"
    assert sum(looked_at) <= 600


def test_partitions_that_nothing_can_be_done_for_hold_up_no_tick(looked_at: list[int]) -> None:
    settings = ControllerSettings(cluster_id=CLUSTER_ID, partitions_looked_at_max=50)
    found = Cluster(settings=settings)
    found.start(1, 2)
    found.create(assignments=((1,),) * 300)
    found.kill(1, 2)
    found.fail_over()
    ticks(found, looked_at)
    assert max(looked_at) <= 50
    assert sum(looked_at) == 300


def test_another_minimum_of_in_sync_replicas_matters_only_where_some_are_missing(
    looked_at: list[int],
) -> None:
    found = Cluster()
    found.start(1, 2, 3)
    found.create(assignments=((1, 2),) * 100, min_insync_replicas="2")
    found.create("lacks", assignments=((1, 3),), min_insync_replicas="2")
    found.kill(3, 1, 2)
    assert found.state(name="lacks").elr == (3,)
    looked_at[:] = [0]
    assert found.set_config("min.insync.replicas", "1", topic="t").is_good
    assert found.set_config("min.insync.replicas", "1").is_good
    assert found.set_config("min.insync.replicas", "1", topic="lacks").is_good
    assert looked_at == [2]
    assert found.state(name="lacks").elr == ()


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    """Count the calls of a function from now on."""
    calls: list[object] = []
    function: Callable[..., Any] = getattr(module, name)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_leaving_broker_that_asks_again_makes_nobody_look_at_all_partitions_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker in a controlled shutdown repeats its request every 20 ms."""
    found = Cluster()
    found.start(1, 2, 3)
    found.create(partitions=300, replicas=3)
    assert not found.heartbeat(1, want_shutdown=True).may_shutdown
    looks = counted(monkeypatch, brokers, "_is_missed")
    for _ in range(10):
        assert not found.heartbeat(1, want_shutdown=True).may_shutdown
    assert len(looks) <= 300
    found.create("later")
    found.beat(2, 3)
    assert found.heartbeat(1, want_shutdown=True).may_shutdown


def test_a_heartbeat_does_not_look_at_all_partitions_whose_log_ends_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After all brokers lost power, each of them sends heartbeats, and no partition has a
    leader.
    """
    found = Cluster()
    found.start(1, 2)
    found.create(partitions=1_000, replicas=2)
    for broker in (1, 2):
        found.register(broker, RestartClass.POWER)
    found.start(3)
    found.now_ms += leaders.CHECK_INTERVAL_MS
    found.beat(1, 2)
    found.tick()
    found.beat(1, 2)
    looks = counted(monkeypatch, leaders, "reported_log_end")
    assert found.heartbeat(3).report_log_ends == ()
    assert looks == []
    asked = found.heartbeat(1).report_log_ends
    assert len(asked) == leaders.LOG_ENDS_PER_HEARTBEAT_MAX == len(looks)


def test_nothing_is_searched_for_partitions_without_a_leader_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID))
    found.start(1, 2)
    found.create(partitions=5, replicas=2)
    found.pass_ms(1_000, 1, 2)
    searches = []
    partitions = MetadataImage.partitions

    def counted(image: MetadataImage) -> Iterator[PartitionState]:
        searches.append(image.offset)
        return partitions(image)

    monkeypatch.setattr(MetadataImage, "partitions", counted)
    found.pass_ms(5_000, 1, 2)
    assert not searches
    found.kill(1, 2)
    found.kill(2)
    found.pass_ms(4_000)
    assert searches
    assert all(state.leader == NO_LEADER for state in partitions(found.image))
    assert len(found.controller._work.inquiries) == 5, "each one waits for a replica"  # type: ignore[union-attr]
