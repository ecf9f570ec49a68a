"""How the controller registers, unfences and fences brokers, and handles repeated restarts."""

from __future__ import annotations

from odradek_metadata_quorum.controller import ControllerSettings, registration
from odradek_metadata_quorum.controller.requests import RegisterRequest
from odradek_protocol.identity import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.features import OWN_MAXIMA
from odradek_protocol.metadata.records import (
    BrokerRegistrationChange,
    PartitionChange,
    RestartClass,
)
from tests.unit.controller.cluster import CLUSTER_ID, Cluster, cluster, fenced

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
        features=OWN_MAXIMA,
    )
    found.commits_at_once = False
    first = found.decide(registration.register, request)
    assert found.decide(registration.register, request) == first
    assert sum(len(records) for _, _, records in found.log[1:]) == 1


def test_another_clusters_broker_is_told_so() -> None:
    found = Cluster()
    request = RegisterRequest(
        cluster_id="another",
        broker_id=BrokerId(1),
        incarnation_id=IncarnationId(b"i" * 16),
        directory_ids=(DirectoryId(b"d" * 16),),
        restart_class=RestartClass.POWER,
        features=OWN_MAXIMA,
    )
    response = found.decide(registration.register, request)
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


def test_a_controller_that_was_deposed_does_not_call_a_new_broker_unregistered() -> None:
    """The broker registered at the new controller, and the old one does not know it yet.

    A broker that is told that it is not registered would stop.
    """
    found = cluster()
    found.epochs[9] = BrokerEpoch(found.image.offset + 1)
    assert found.heartbeat(9).error is ErrorCode.NOT_CONTROLLER


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
