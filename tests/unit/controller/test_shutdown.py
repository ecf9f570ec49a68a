"""Brokers that request a shutdown, that cannot write, whose replicas fail on an internal error, or
that are unregistered.
"""

from __future__ import annotations

from odradek_metadata_quorum.controller import registration, topics
from odradek_metadata_quorum.controller.requests import AlterPartitionResult, DeleteTopicsRequest
from odradek_protocol.identity import BrokerId, PartitionIndex, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import NO_LEADER, RestartClass
from tests.unit.controller.cluster import Cluster, cluster

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


def test_a_broker_stops_waiting_for_a_replica_that_fails_without_a_record() -> None:
    found = cluster()
    found.create(assignments=((1, 2, 3),), min_insync_replicas="2")
    broken = frozenset({TopicIdPartition(found.state().topic_id, PartitionIndex(0))})
    found.kill(1, 2, 3)
    found.register(1)
    found.beat(1, 2, 3)
    found.heartbeat(2, want_shutdown=True)
    found.beat(1, 3)
    assert not found.heartbeat(2, want_shutdown=True).may_shutdown
    before = found.image.offset
    found.heartbeat(1, broken_partitions=broken)
    assert found.image.offset == before, "the failed replica was not in sync"
    assert found.heartbeat(2, want_shutdown=True).may_shutdown
    found.heartbeat(1)
    assert not found.heartbeat(2, want_shutdown=True).may_shutdown, "it may catch up after all"


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


def test_a_broker_that_cannot_write_serves_what_only_it_has_after_it_was_fenced_too() -> None:
    """A broken connection must not make records unreadable until the disk has space again."""
    found = cluster()
    found.create(assignments=((1,),))
    found.heartbeat(1, cannot_write=True)
    found.kill(1, 2, 3)
    assert found.state().leader == NO_LEADER
    found.heartbeat(1, cannot_write=True)
    assert found.state().leader == 1
    found.heartbeat(1, cannot_write=True)
    assert (found.state().leader, found.image.brokers[BrokerId(1)].in_shutdown) == (1, True)
    found.create(assignments=((1, 2, 3),), name="shared", min_insync_replicas="2")
    assert found.state(name="shared").leader != 1


def leader_died_beside_full_disks(**wishes: bool) -> Cluster:
    """Return a cluster with brokers 1, 2 and 3 in sync, where leader 1 is fenced and the disks of 2
    and 3 are full.
    """
    found = cluster()
    found.create(assignments=((1, 2, 3),), min_insync_replicas="3")
    found.beat(2, 3, cannot_write=True, **wishes)
    assert (found.state().leader, found.state().isr) == (1, (1, 2, 3))
    found.break_stream(1)
    pass_with_full_disks(found, found.settings.grace_ms, **wishes)
    return found


def pass_with_full_disks(found: Cluster, duration_ms: int, *alive: int, **wishes: bool) -> None:
    for _ in range(duration_ms // 50):
        found.beat(2, 3, cannot_write=True, **wishes)
        found.pass_ms(50, *alive)


def test_brokers_with_full_disks_are_elected_for_readers_until_another_can_lead() -> None:
    found = leader_died_beside_full_disks()
    assert (found.state().leader, found.state().isr) == (2, (2, 3))
    epoch = found.state().leader_epoch
    found.heartbeat(2)
    found.heartbeat(2, cannot_write=True)
    pass_with_full_disks(found, 500)
    assert (found.state().leader, found.state().leader_epoch) == (2, epoch), "no back and forth"
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    pass_with_full_disks(found, 100, 1)
    assert found.state().leader == 2, "broker 1 has not caught up yet"
    taken = found.alter_partition((1, 2, 3), sender=2)
    assert isinstance(taken, AlterPartitionResult)
    assert taken.error is ErrorCode.NONE
    pass_with_full_disks(found, 50, 1)
    assert found.state().leader == 1


def test_an_eligible_broker_with_a_full_disk_is_elected_when_the_isr_is_empty() -> None:
    found = cluster()
    found.create(assignments=((1, 2),), min_insync_replicas="2")
    found.kill(2, 1, 3)
    assert (found.state().isr, found.state().elr) == ((1,), (2,))
    found.kill(1, 3)
    found.register(2, RestartClass.PROCESS)
    found.heartbeat(2, cannot_write=True, want_fence=True)
    assert found.state().leader == NO_LEADER
    found.heartbeat(2, cannot_write=True)
    found.pass_ms(50)
    assert (found.state().leader, found.state().isr, found.state().elr) == (2, (2,), (1,))


def test_brokers_with_full_disks_that_want_to_stop_are_not_elected() -> None:
    assert leader_died_beside_full_disks(want_shutdown=True).state().leader == NO_LEADER


def test_a_new_controller_elects_a_broker_with_a_full_disk_once_it_hears_of_it() -> None:
    found = leader_died_beside_full_disks(want_shutdown=True)
    found.fail_over()
    found.pass_ms(100)
    assert found.state().leader == NO_LEADER, "nobody has said why these two leave"
    found.heartbeat(3, cannot_write=True)
    found.pass_ms(50)
    assert found.state().leader == 3


def test_a_broker_that_stops_is_not_unfenced_again() -> None:
    found = cluster()
    found.heartbeat(1, want_shutdown=True)
    found.kill(1, 2, 3)
    found.heartbeat(1, want_shutdown=True)
    assert found.image.brokers[BrokerId(1)].fenced


# --- unregistering


def test_a_live_broker_cannot_be_forgotten_a_dead_one_can() -> None:
    found = cluster()
    alive = found.decide(registration.unregister, BrokerId(2))
    assert alive.error is ErrorCode.INVALID_REQUEST
    found.kill(2, 1, 3)
    assert found.decide(registration.unregister, BrokerId(2)).is_good
    assert BrokerId(2) not in found.image.brokers
    again = found.decide(registration.unregister, BrokerId(2))
    assert again.error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert found.register(2).outcome.is_good


def test_the_broker_with_the_only_copy_cannot_be_forgotten_before_that_copy_is_given_up() -> None:
    found = cluster()
    found.create("t", assignments=((2, 3),))
    found.kill(3, 1, 2)
    found.kill(2, 1)
    assert found.decide(registration.unregister, BrokerId(3)).is_good, "2 has all that 3 has"
    refusal = found.decide(registration.unregister, BrokerId(2))
    assert refusal.error is ErrorCode.INVALID_REQUEST
    assert "only in-sync replica of t-0" in refusal.message
    found.decide(topics.delete_topics, DeleteTopicsRequest(names=("t",)))
    assert found.decide(registration.unregister, BrokerId(2)).is_good
