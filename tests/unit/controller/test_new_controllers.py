"""What a new active controller knows of the time before it became active, and how a slow one
measures deadlines.
"""

from __future__ import annotations

import pytest

from odradek_metadata_quorum.controller import ControllerSettings, registration
from odradek_metadata_quorum.controller.requests import BatchTooLarge
from odradek_protocol.identity import BrokerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import NO_LEADER, PartitionChange, RestartClass
from tests.unit.controller.cluster import CLUSTER_ID, Cluster, cluster, fenced

# --- a new active controller (R24)


def standby_of(found: Cluster) -> Cluster:
    """Return another controller with the same log, which is not active yet."""
    standby = Cluster.__new__(Cluster)
    standby.__dict__.update(found.__dict__)
    from random import Random

    from odradek_metadata_quorum.controller import Controller
    from odradek_protocol.identity import MetadataOffset

    standby.controller = Controller(found.settings, Random(7))
    standby.log = list(found.log)
    for offset, epoch, records in standby.log:
        for record in records:
            standby.controller.replay(MetadataOffset(offset), epoch, record)
    return standby


def test_a_standby_answers_heartbeats_without_renewing_leases() -> None:
    standby = standby_of(cluster())
    response = standby.heartbeat(1)
    assert response.error is ErrorCode.NONE
    assert not response.is_active


def test_breaks_that_a_standby_saw_count_from_its_activation() -> None:
    standby = standby_of(cluster())
    standby.beat(1, 2, 3)
    standby.now_ms = 100
    standby.break_stream(2)
    standby.now_ms = 10_000
    standby.beat(1, 3)
    standby.activate()
    standby.pass_ms(450, 1, 3)
    assert fenced(standby) == set()
    standby.pass_ms(50, 1, 3)
    assert fenced(standby) == {2}


def test_brokers_that_a_new_controller_never_saw_get_a_session() -> None:
    standby = standby_of(cluster())
    standby.beat(1, 3)
    standby.activate()
    standby.pass_ms(2950, 1, 3)
    assert fenced(standby) == set()
    standby.pass_ms(50, 1, 3)
    assert fenced(standby) == {2}


def test_a_controller_that_lost_its_leadership_decides_nothing() -> None:
    found = cluster()
    found.controller.resigned()
    assert not found.controller.is_active
    assert found.controller.tick(10_000) == []
    with pytest.raises(AssertionError, match="standby"):
        found.controller.decide(found.now_ms, registration.unregister, BrokerId(1))


def test_what_was_not_committed_is_forgotten_and_names_are_free_again() -> None:
    found = cluster()
    found.commits_at_once = False
    found.create("kept")
    found.create("lost")
    found.replay(1)
    found.fail_over(lost=1)
    assert list(found.image.topic_ids) == ["kept"]
    assert found.create("lost").outcome.is_good
    assert found.create("kept").outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_decision_that_lands_elsewhere_than_expected_is_a_bug() -> None:
    from odradek_protocol.identity import MetadataOffset

    found = cluster()
    found.commits_at_once = False
    found.create("a")
    offset, epoch, records = found.log[-1]
    with pytest.raises(AssertionError, match="committed at"):
        found.controller.replay(MetadataOffset(offset + 1), epoch, records[0])


def test_brokers_without_any_live_replica_leave_a_partition_without_leader() -> None:
    found = cluster(1)
    found.create(partitions=1, replicas=1)
    found.kill(1)
    assert found.state().leader == NO_LEADER
    assert found.state().elr == (1,)
    found.register(1, RestartClass.POWER)
    found.beat(1)
    assert found.state().leader == 1, "the only copy leads again, whatever it lost"


def test_a_controller_that_is_slow_all_the_time_fences_the_dead_all_the_same() -> None:
    """Each tick is 600 ms late.

    If the controller excused all of its delays, no deadline would ever pass.
    """
    found = cluster()
    found.tick()
    found.break_stream(2)
    died_ms = found.now_ms
    while 2 not in fenced(found):
        found.pass_ms(600, 1, 3, step_ms=600)
        assert found.now_ms - died_ms <= 2_400, "the dead broker leads on"
    assert fenced(found) == {2}


def test_a_silent_broker_is_fenced_by_a_slow_controller_too() -> None:
    found = cluster()
    found.tick()
    silent_ms = found.now_ms
    while 2 not in fenced(found):
        found.pass_ms(600, 1, 3, step_ms=600)
        assert found.now_ms - silent_ms <= 5_400, "the silent broker leads on"


def test_a_registration_that_fails_leaves_the_old_life_watched() -> None:
    """Otherwise the old registration would never be fenced, and its partitions would keep a dead
    leader.
    """
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, batch_bytes_max=3_000))
    found.start(1, 2)
    found.create(partitions=20, replicas=2)
    with pytest.raises(BatchTooLarge):
        found.register(1, rack="r" * 4_000)
    found.break_stream(1)
    found.pass_ms(found.settings.session_ms + 100, 2)
    assert found.image.brokers[BrokerId(1)].fenced
    assert {state.leader for state in found.image.partitions()} == {2}


def test_a_broker_of_many_partitions_loses_its_directory_piece_by_piece() -> None:
    settings = ControllerSettings(cluster_id=CLUSTER_ID, registration_changes_max=4)
    found = Cluster(settings=settings)
    found.start(1, 2)
    found.create(partitions=10, replicas=2)
    directory = found.image.brokers[BrokerId(1)].directory_ids
    batches = len(found.log)
    for _ in range(4):
        found.beat(1, offline_directory_ids=directory)
        assert found.image.brokers[BrokerId(1)].fenced
        found.beat(2)
    changes = [
        sum(isinstance(record, PartitionChange) for record in records)
        for _, _, records in found.log[batches:]
    ]
    assert changes == [4, 4, 2]
    assert found.image.brokers[BrokerId(1)].offline_directory_ids == directory
    for state in found.image.partitions():
        assert (state.leader, state.isr, state.elr, state.lost) == (2, (2,), (), (1,))
