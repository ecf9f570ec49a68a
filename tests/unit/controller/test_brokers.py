"""Registration, heartbeats, fencing, flapping, shutdown, and what a new controller knows."""

from __future__ import annotations

import pytest

from odradek_metadata_quorum.controller import ControllerSettings
from odradek_metadata_quorum.controller.decision import BatchTooLarge
from odradek_metadata_quorum.controller.requests import AlterPartitionResult, RegisterRequest
from odradek_protocol.identity import (
    BrokerId,
    DirectoryId,
    IncarnationId,
    PartitionIndex,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChange,
    PartitionChange,
    RestartClass,
)
from tests.unit.controller.cluster import CLUSTER_ID, Cluster


def cluster(brokers: int = 3) -> Cluster:
    found = Cluster()
    found.start(*range(1, brokers + 1))
    return found


def fenced(found: Cluster) -> set[int]:
    return {b.broker_id for b in found.image.brokers.values() if b.fenced}


# --- registration


def test_a_broker_starts_fenced_and_its_epoch_is_the_offset_of_its_registration() -> None:
    found = Cluster()
    response = found.register(1)
    assert response.broker_epoch == found.log[-1][0] == found.image.offset
    assert found.image.brokers[BrokerId(1)].fenced


def test_the_same_incarnation_gets_the_same_answer() -> None:
    found = Cluster()
    request = RegisterRequest(
        cluster_id=CLUSTER_ID,
        broker_id=BrokerId(1),
        incarnation_id=IncarnationId(b"i" * 16),
        directory_ids=(DirectoryId(b"d" * 16),),
        restart_class=RestartClass.POWER,
    )
    found.commits_at_once = False
    first = found.commit(found.controller.handle_register(request, 0))
    assert found.commit(found.controller.handle_register(request, 0)) == first
    assert sum(len(records) for _, _, records in found.log[1:]) == 1


def test_another_clusters_broker_is_told_so() -> None:
    found = Cluster()
    request = RegisterRequest(
        cluster_id="another",
        broker_id=BrokerId(1),
        incarnation_id=IncarnationId(b"i" * 16),
        directory_ids=(DirectoryId(b"d" * 16),),
        restart_class=RestartClass.POWER,
    )
    response = found.commit(found.controller.handle_register(request, 0))
    assert response.outcome.error is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "another" in response.outcome.message
    assert CLUSTER_ID in response.outcome.message


def test_a_second_machine_with_a_live_brokers_id_is_refused() -> None:
    found = cluster()
    refused = found.register(2, directory=77)
    assert refused.outcome.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    found.kill(2, 1, 3)
    assert found.register(2, directory=77).outcome.is_good, "a dead one's disk may be replaced"


def test_the_old_life_is_told_to_exit() -> None:
    found = cluster()
    old = found.epochs[2]
    found.register(2, RestartClass.PROCESS)
    assert found.heartbeat(2, broker_epoch=old).error is ErrorCode.STALE_BROKER_EPOCH


def test_a_registration_is_one_batch_with_all_that_follows_from_it() -> None:
    found = cluster()
    found.create(partitions=30, replicas=3, min_insync_replicas="2")
    led = [s.partition for s in found.image.partitions() if s.leader == 2]
    entries = len(found.log)
    found.register(2, RestartClass.POWER)
    assert len(found.log) == entries + 1
    for state in found.image.partitions():
        assert 2 not in state.isr
        assert state.lost == (2,)
        if state.partition in led:
            assert state.leader_epoch == 1


def test_a_registration_that_is_too_large_goes_piece_by_piece() -> None:
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, registration_changes_max=40))
    found.start(1, 2, 3)
    found.create(partitions=100, replicas=3, min_insync_replicas="2")
    epoch = found.epochs[2]
    answers = [found.register(2, RestartClass.POWER) for _ in range(3)]
    assert [answer.outcome.error for answer in answers] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NONE,
    ]
    assert answers[-1].broker_epoch > epoch
    for state in found.image.partitions():
        assert state.lost == (2,)
        assert state.leader != 2
    largest = max(
        sum(isinstance(record, PartitionChange) for record in records)
        for _, _, records in found.log
    )
    assert largest == 40


def test_single_partitions_may_have_lost_bytes_though_the_process_did_not() -> None:
    from odradek_protocol.identity import TopicIdPartition

    found = cluster()
    found.create(assignments=((1, 2), (1, 2)), min_insync_replicas="2")
    state = found.state(1)
    found.register(
        2,
        RestartClass.PROCESS,
        lost_partitions=frozenset({TopicIdPartition(state.topic_id, state.partition)}),
    )
    assert (found.state(0).elr, found.state(0).lost) == ((2,), ())
    assert (found.state(1).elr, found.state(1).lost) == ((), (2,))


# --- unfencing


def test_a_broker_is_unfenced_when_its_image_has_reached_its_registration() -> None:
    found = Cluster()
    epoch = found.register(1).broker_epoch
    found.beat(1, image_offset=epoch - 1)
    assert fenced(found) == {1}
    found.heartbeat(1, want_fence=True)
    assert fenced(found) == {1}
    assert found.heartbeat(1, image_offset=epoch).is_fenced, "it is told once it is committed..."
    assert fenced(found) == set()
    assert not found.heartbeat(1).is_fenced, "...with the next heartbeat"


def test_a_broker_that_wants_to_be_fenced_is() -> None:
    found = cluster()
    found.heartbeat(2, want_fence=True)
    assert fenced(found) == {2}


def test_an_unknown_broker_must_register() -> None:
    found = Cluster()
    found.epochs[9] = found.register(8).broker_epoch
    assert found.heartbeat(9).error is ErrorCode.BROKER_ID_NOT_REGISTERED


# --- death


def test_a_reconnect_within_the_grace_saves_it() -> None:
    found = cluster()
    found.break_stream(2)
    found.pass_ms(450, 1, 3)
    found.beat(2)
    found.pass_ms(2000, 1, 2, 3)
    assert fenced(found) == set()


def test_half_of_the_brokers_at_once_is_our_own_fault() -> None:
    found = cluster(4)
    found.break_stream(1)
    found.break_stream(2)
    found.pass_ms(2900, 3, 4)
    assert fenced(found) == set()
    found.pass_ms(200, 3, 4)
    assert fenced(found) == {1, 2}


def test_our_own_stall_fences_nobody() -> None:
    found = cluster()
    found.tick()
    found.now_ms += 60_000
    found.tick()
    found.pass_ms(1000, 1, 2, 3)
    assert fenced(found) == set()


def test_a_flapping_broker_waits_longer_each_time() -> None:
    found = cluster()
    waited = []
    for _ in range(5):
        found.kill(2, 1, 3)
        found.register(2, RestartClass.PROCESS)
        begun_ms = found.now_ms
        while 2 in fenced(found):
            found.pass_ms(50, 1, 2, 3)
        waited.append(found.now_ms - begun_ms)
    assert waited == [50, 1000, 2000, 4000, 8000]
    found.pass_ms(70_000, 1, 2, 3, step_ms=250)
    found.kill(2, 1, 3)
    found.register(2, RestartClass.PROCESS)
    found.pass_ms(50, 1, 2, 3)
    assert fenced(found) == set(), "after a minute of calm it is forgiven"


def test_a_flapping_broker_does_not_get_its_leaderships_back_at_once() -> None:
    found = cluster()
    found.set_config("leader.imbalance.check.interval.seconds", "1")
    found.create(assignments=((2, 1, 3),))
    for _ in range(2):
        found.kill(2, 1, 3)
        found.register(2, RestartClass.PROCESS)
        while 2 in fenced(found):
            found.pass_ms(50, 1, 2, 3)
    found.alter_partition((1, 2, 3))
    found.pass_ms(30_000, 1, 2, 3, step_ms=250)
    assert found.state().leader == 1
    found.pass_ms(40_000, 1, 2, 3, step_ms=250)
    assert found.state().leader == 2


def test_many_partitions_move_in_bounded_batches_elections_first() -> None:
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_batch_max=50))
    found.start(1, 2, 3)
    found.create(partitions=180, replicas=3)
    entries = len(found.log)
    found.kill(1, 2, 3)
    batches = [records for _, _, records in found.log[entries:]]
    assert isinstance(batches[0][0], BrokerRegistrationChange)
    changes = [[r for r in batch if isinstance(r, PartitionChange)] for batch in batches]
    assert [len(batch) for batch in changes] == [50, 50, 50, 30]
    is_election = [change.leader is not None for batch in changes for change in batch]
    assert is_election == [True] * 60 + [False] * 120
    for state in found.image.partitions():
        assert state.leader in (2, 3)
        assert set(state.isr) == {2, 3}


def test_a_new_controller_finishes_what_the_old_one_began() -> None:
    found = Cluster(settings=ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_batch_max=50))
    found.start(1, 2, 3)
    found.create(partitions=180, replicas=3)
    found.commits_at_once = False
    found.kill(1, 2, 3)
    found.replay(1)  # the fencing and the first 50 elections
    found.fail_over(lost=3)
    found.commits_at_once = True
    assert any(state.leader == 1 for state in found.image.partitions())
    found.tick()
    found.image.check()
    assert all(1 not in state.isr for state in found.image.partitions())


# --- shutdown


def test_a_broker_may_go_when_all_live_brokers_know_or_had_time() -> None:
    found = cluster()
    found.create(partitions=3, replicas=3)
    old = found.image.offset
    assert not found.heartbeat(1, want_shutdown=True).may_shutdown
    assert not any(state.leader == 1 for state in found.image.partitions())
    found.beat(2, 3, image_offset=old)
    assert not found.heartbeat(1, want_shutdown=True).may_shutdown
    found.beat(2)
    found.beat(3)
    assert found.heartbeat(1, want_shutdown=True).may_shutdown


def test_a_broker_that_cannot_write_leads_only_what_nobody_else_can_until_it_can_again() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3),), name="shared", min_insync_replicas="2")
    found.create(assignments=((1,),), name="alone")
    found.heartbeat(1, cannot_write=True)
    assert found.state(name="shared").leader != 1
    assert found.state(name="shared").isr == (2, 3)
    assert found.state(name="alone").leader == 1, "what only it has it serves to readers"
    assert not found.image.brokers[BrokerId(1)].fenced
    found.heartbeat(1)
    assert found.image.brokers[BrokerId(1)].is_live
    found.kill(2, 3)
    assert found.state(name="shared").leader in (-1, 2, 3), "it has not caught up yet"


def test_others_lead_what_a_bug_ended_until_that_broker_restarts() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3), (1, 2, 3)), min_insync_replicas="2")
    broken = TopicIdPartition(found.state().topic_id, PartitionIndex(0))
    found.heartbeat(1, broken_partitions=frozenset({broken}))
    assert (found.state(0).leader, found.state(0).isr) == (2, (2, 3))
    assert (found.state(1).leader, found.state(1).isr) == (1, (1, 2, 3)), "the others it leads on"
    refused = found.alter_partition((1, 2, 3), sender=2)
    assert isinstance(refused, AlterPartitionResult)
    assert refused.error is ErrorCode.INELIGIBLE_REPLICA
    found.kill(3, 2)
    found.heartbeat(1, broken_partitions=frozenset({broken}))
    assert (found.state(0).leader, found.state(0).isr) == (2, (2,))
    found.register(1, RestartClass.PROCESS)
    found.beat(1, 2)
    taken = found.alter_partition((1, 2), sender=2)
    assert isinstance(taken, AlterPartitionResult)
    assert taken.error is ErrorCode.NONE


def test_the_last_copy_of_what_a_bug_ended_keeps_its_claim() -> None:
    found = cluster()
    found.create(assignments=((1,),))
    broken = TopicIdPartition(found.state().topic_id, PartitionIndex(0))
    for _ in range(2):
        found.heartbeat(1, broken_partitions=frozenset({broken}))
        assert (found.state().leader, found.state().isr, found.state().elr) == (-1, (), (1,))
        found.tick()
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    assert (found.state().leader, found.state().isr, found.state().lost) == (1, (1,), ())


def test_a_broker_that_does_not_hear_does_not_hold_up_a_shutdown_for_long() -> None:
    found = cluster()
    found.create(partitions=3, replicas=3)
    old = found.image.offset
    found.heartbeat(1, want_shutdown=True)
    found.now_ms += 999
    found.beat(2, 3, image_offset=old)
    assert not found.heartbeat(1, want_shutdown=True).may_shutdown
    found.now_ms += 1
    assert found.heartbeat(1, want_shutdown=True).may_shutdown


def test_a_broker_stays_while_acks_all_would_stop_without_it_and_a_live_replica_catches_up() -> (
    None
):
    found = cluster()
    found.create(assignments=((1, 2, 3),), min_insync_replicas="2")
    found.kill(1, 2, 3)
    found.register(1)
    found.beat(1, 2, 3)
    assert found.state().isr == (2, 3), "alive again, and not yet caught up"
    found.heartbeat(2, want_shutdown=True)
    assert found.state().leader == 3
    for _ in range(10):
        found.now_ms += 500
        found.beat(1, 3)
        assert not found.heartbeat(2, want_shutdown=True).may_shutdown
    found.alter_partition((1, 2, 3), sender=3)
    found.beat(1, 3)
    found.heartbeat(2, want_shutdown=True)
    found.beat(1, 3)
    assert found.heartbeat(2, want_shutdown=True).may_shutdown


def test_a_broker_does_not_wait_for_replicas_that_cannot_come() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3),), min_insync_replicas="2")
    found.kill(1, 2, 3)
    found.heartbeat(2, want_shutdown=True)
    found.beat(3)
    assert found.heartbeat(2, want_shutdown=True).may_shutdown


def test_the_last_brokers_of_a_cluster_go_together() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3),), min_insync_replicas="2")
    for broker in (1, 2, 3):
        found.heartbeat(broker, want_shutdown=True)
    for broker in (1, 2, 3):
        assert found.heartbeat(broker, want_shutdown=True).may_shutdown


def test_a_fenced_broker_may_go_at_once() -> None:
    found = Cluster()
    found.register(1)
    assert found.heartbeat(1, want_shutdown=True).may_shutdown


def test_a_broker_in_shutdown_is_not_unfenced_nor_led_by() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3),))
    found.heartbeat(2, want_shutdown=True)
    found.kill(1, 2, 3)
    assert found.state().leader == 3


# --- unregistering


def test_a_live_broker_cannot_be_forgotten_a_dead_one_can() -> None:
    found = cluster()
    alive = found.commit(found.controller.handle_unregister_broker(BrokerId(2)))
    assert alive.error is ErrorCode.INVALID_REQUEST
    found.kill(2, 1, 3)
    assert found.commit(found.controller.handle_unregister_broker(BrokerId(2))).is_good
    assert BrokerId(2) not in found.image.brokers
    again = found.commit(found.controller.handle_unregister_broker(BrokerId(2)))
    assert again.error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert found.register(2).outcome.is_good


# --- a new active controller (R24)


def standby_of(found: Cluster) -> Cluster:
    """Another member with the same log, not active yet."""
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
        found.controller.handle_unregister_broker(BrokerId(1))


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
    """Each tick comes 600 ms late: were all of that time forgiven, no deadline would ever pass."""
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
    """Nobody else would fence it: its partitions would keep a dead leader for ever."""
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
