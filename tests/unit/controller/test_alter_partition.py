"""AlterPartition: which ISR proposals of a leader the controller accepts (rule R17), with one table
row for each condition.
"""

from __future__ import annotations

from typing import Any

import pytest

from odradek_metadata_quorum.controller import leaders, partitions, topics
from odradek_metadata_quorum.controller.leaders import CHECK_INTERVAL_MS
from odradek_metadata_quorum.controller.requests import (
    AlterPartitionResult,
    LogEnd,
    Reassignment,
    ReportLogEndsRequest,
)
from odradek_protocol.identity import (
    BrokerId,
    PartitionIndex,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import NO_LEADER, RestartClass
from tests.unit.controller.cluster import Cluster


def cluster() -> Cluster:
    """Return a cluster in which brokers 1 to 4 are live and 5 is fenced, with one partition on
    brokers 1, 2 and 3.

    The ISR is 1 and 2; broker 3 has restarted and is not in sync yet.
    """
    found = Cluster()
    found.start(1, 2, 3, 4)
    found.register(5)
    found.create(assignments=((1, 2, 3),), min_insync_replicas="2")
    found.kill(3, 1, 2, 4)
    found.register(3, RestartClass.PROCESS)
    found.beat(3)
    assert found.state().isr == (1, 2)
    return found


def test_a_caught_up_replica_joins() -> None:
    found = cluster()
    before = found.state()
    result = found.alter_partition((1, 2, 3))
    assert isinstance(result, AlterPartitionResult)
    assert result.error is ErrorCode.NONE
    after = found.state()
    assert after.isr == (1, 2, 3)
    assert after.partition_epoch == before.partition_epoch + 1 == result.partition_epoch
    assert after.leader_epoch == before.leader_epoch, "an ISR change never bumps the leader epoch"


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        ({"sender_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
        ({"sender": 2}, ErrorCode.INVALID_REQUEST),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ({"isr": (2, 3)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 4)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2, 2)}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1,), "recovering": True}, ErrorCode.INVALID_REQUEST),
        ({"isr": (1, 2), "recovering": True}, ErrorCode.INVALID_REQUEST),
        ({"member_epochs": {3: 0}}, ErrorCode.INELIGIBLE_REPLICA),
        ({"member_epochs": {2: 0}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_that_is_not_right_changes_nothing(
    proposal: dict[str, Any], error: ErrorCode
) -> None:
    found = cluster()
    before = found.state()
    result = found.alter_partition(**{"isr": (1, 2, 3), **proposal})
    assert error in (result, getattr(result, "error", None))
    assert found.state() == before


def test_a_fenced_replica_does_not_join() -> None:
    found = cluster()
    found.kill(3, 1, 2, 4)
    result = found.alter_partition((1, 2, 3))
    assert getattr(result, "error", None) is ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_in_shutdown_does_not_join() -> None:
    found = cluster()
    found.heartbeat(3, want_shutdown=True)
    result = found.alter_partition((1, 2, 3))
    assert getattr(result, "error", None) is ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_that_restarted_since_is_not_taken_for_its_former_life() -> None:
    found = cluster()
    former = found.epochs[3]
    found.register(3, RestartClass.POWER)
    found.pass_ms(1500, 1, 2, 3, 4)
    result = found.alter_partition((1, 2, 3), member_epochs={3: former})
    assert getattr(result, "error", None) is ErrorCode.INELIGIBLE_REPLICA
    found.alter_partition((1, 2, 3))
    assert found.state().isr == (1, 2, 3)


def test_an_old_life_of_the_leader_is_told_to_go() -> None:
    found = cluster()
    former = found.epochs[1]
    found.register(1, RestartClass.PROCESS)
    assert found.alter_partition((1,), sender=1, sender_epoch=former) is (
        ErrorCode.STALE_BROKER_EPOCH
    )


def test_a_deleted_topics_partition_is_unknown() -> None:
    from odradek_metadata_quorum.controller.requests import DeleteTopicsRequest

    found = cluster()
    state = found.state()
    found.commits_at_once = False
    found.decide(topics.delete_topics, DeleteTopicsRequest(names=("t",)))
    assert found.state() == state, "not committed yet"
    result = found.alter_partition((1, 2, 3))
    assert getattr(result, "error", None) is ErrorCode.UNKNOWN_TOPIC_ID


def test_too_many_proposals_in_one_request_are_refused() -> None:
    from odradek_metadata_quorum.controller.requests import (
        AlterPartitionItem,
        AlterPartitionRequest,
    )
    from odradek_protocol.identity import TopicIdPartition

    found = cluster()
    state = found.state()
    item = AlterPartitionItem(
        partition=TopicIdPartition(state.topic_id, state.partition),
        leader_epoch=0,
        partition_epoch=1,
        isr=((BrokerId(1), found.epochs[1]),),
    )
    request = AlterPartitionRequest(
        broker_id=BrokerId(1), broker_epoch=found.epochs[1], partitions=(item,) * 501
    )
    response = found.decide(partitions.alter_partitions, request)
    assert response.error is ErrorCode.INVALID_REQUEST


# --- reassignment: the same proposals complete a move


def reassign(
    found: Cluster, *replicas: int, cancel: bool = False, keep_replication_factor: bool = False
) -> ErrorCode:
    (result,) = found.decide(
        partitions.alter_reassignments,
        (
            Reassignment(
                partition=TopicPartition(TopicName("t"), PartitionIndex(0)),
                replicas=None if cancel else tuple(map(BrokerId, replicas)),
            ),
        ),
        keep_replication_factor=keep_replication_factor,
    )
    error = result.outcome.error
    assert isinstance(error, ErrorCode)
    return error


def test_a_move_that_is_asked_for_again_changes_nothing() -> None:
    """The first response was lost.

    A new partition epoch would interrupt the leader and void its proposals.
    """
    found = cluster()
    before = found.state()
    assert reassign(found, *before.replicas) is ErrorCode.NONE
    assert found.state() == before
    assert reassign(found, 4, 3) is ErrorCode.NONE
    moving = found.state()
    assert reassign(found, 4, 3) is ErrorCode.NONE
    assert found.state() == moving


def test_a_move_may_be_forbidden_to_change_the_replication_factor() -> None:
    """During a reassignment, the factor that counts is the one after its end (KIP-860)."""
    found = cluster()
    before = found.state()
    for replicas in ((1, 2), (1, 2, 3, 4)):
        refusal = reassign(found, *replicas, keep_replication_factor=True)
        assert refusal is ErrorCode.INVALID_REPLICATION_FACTOR
    assert found.state() == before
    assert reassign(found, 2, 3, 4, keep_replication_factor=True) is ErrorCode.NONE
    assert reassign(found, 1, 4) is ErrorCode.NONE
    refusal = reassign(found, 2, 3, 4, keep_replication_factor=True)
    assert refusal is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(found, 3, 4, keep_replication_factor=True) is ErrorCode.NONE
    assert reassign(found, cancel=True, keep_replication_factor=True) is ErrorCode.NONE


def test_another_order_of_the_same_replicas_interrupts_no_leader() -> None:
    found = cluster()
    before = found.state()
    assert reassign(found, 3, 2, 1) is ErrorCode.NONE
    after = found.state()
    assert after.replicas == (3, 2, 1)
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)


def test_a_move_completes_when_the_last_added_replica_is_in_sync() -> None:
    found = cluster()
    assert reassign(found, 4, 3) is ErrorCode.NONE
    state = found.state()
    assert state.replicas == (4, 3, 1, 2)
    assert (state.adding, state.removing) == ((4,), (1, 2))
    assert state.leader == 1, "the old leader serves until the move is done"
    found.alter_partition((1, 2, 3))
    assert found.state().replicas == (4, 3, 1, 2)
    before = found.state()
    found.alter_partition((1, 2, 3, 4))
    after = found.state()
    assert (after.replicas, after.isr, after.leader) == ((4, 3), (3, 4), 4)
    assert (after.adding, after.removing) == ((), ())
    assert after.leader_epoch == before.leader_epoch + 1


def test_a_move_waits_until_enough_of_its_final_replicas_are_in_sync() -> None:
    """Broker 3 stays and is behind: without 1 and 2, broker 4 alone would have what two replicas acknowledged."""
    found = cluster()
    assert reassign(found, 4, 3) is ErrorCode.NONE
    found.alter_partition((1, 2, 4))
    state = found.state()
    assert (state.replicas, state.isr) == ((4, 3, 1, 2), (1, 2, 4))
    found.alter_partition((1, 2, 4, 3))
    state = found.state()
    assert (state.replicas, set(state.isr), state.removing) == ((4, 3), {3, 4}, ())


def test_fewer_replicas_are_kept_only_if_enough_of_them_are_in_sync() -> None:
    found = cluster()
    assert reassign(found, 1, 3) is ErrorCode.NONE
    assert found.state().isr == (1, 2)
    found.alter_partition((1, 2, 3))
    state = found.state()
    assert (state.replicas, state.isr) == ((1, 3), (1, 3))


def test_a_move_to_one_replica_needs_one() -> None:
    found = cluster()
    assert reassign(found, 4) is ErrorCode.NONE
    found.alter_partition((1, 2, 4))
    state = found.state()
    assert (state.replicas, state.isr, state.leader) == ((4,), (4,), 4)


def test_a_move_that_waits_completes_when_it_is_repeated_with_a_lower_minimum() -> None:
    found = cluster()
    reassign(found, 4, 3)
    found.alter_partition((1, 2, 4))
    found.set_config("min.insync.replicas", "1", topic="t")
    assert reassign(found, 4, 3) is ErrorCode.NONE
    state = found.state()
    assert (state.replicas, state.isr, state.leader) == ((4, 3), (4,), 4)


def test_a_cancelled_move_leaves_what_was() -> None:
    found = cluster()
    reassign(found, 4, 3)
    found.alter_partition((1, 2, 3))
    assert reassign(found, cancel=True) is ErrorCode.NONE
    state = found.state()
    assert set(state.replicas) == {1, 2, 3}
    assert set(state.isr) == {1, 2, 3}
    assert reassign(found, cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("replacement", [(), (1, 2, 5)])
def test_a_removed_replica_that_is_added_again_is_not_taken_for_its_former_self(
    replacement: tuple[int, ...],
) -> None:
    """The replica deleted its log. The leader may see both changes at once, and must forget its acknowledgements."""
    found = cluster()
    found.register(5)
    found.beat(5)
    assert reassign(found, 1, 2, 4) is ErrorCode.NONE
    moving = found.state()
    assert reassign(found, *replacement, cancel=not replacement) is ErrorCode.NONE
    state = found.state()
    assert 4 not in state.replicas
    assert (state.leader, state.leader_epoch) == (moving.leader, moving.leader_epoch + 1)


def test_no_copy_is_dropped_while_the_longest_log_is_looked_for() -> None:
    """The power failed at both in-sync replicas; the one that the move adds may have what the other one lost."""
    found = cluster()
    found.register(5)
    found.beat(5)
    assert reassign(found, 4, 5, 1) is ErrorCode.NONE
    found.alter_partition((1, 4))
    for broker in (4, 1):
        found.register(broker, RestartClass.POWER)
    state = found.state()
    assert (state.leader, set(state.lost)) == (NO_LEADER, {1, 4})
    assert reassign(found, cancel=True) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(found, 1, 2, 5) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert found.state() == state
    found.pass_ms(2 * CHECK_INTERVAL_MS, 1, 2, 3, 4, 5, step_ms=CHECK_INTERVAL_MS)
    for broker, log_end in ((1, 50), (4, 100)):
        assert found.heartbeat(broker).report_log_ends
        end = LogEnd(
            partition=TopicIdPartition(state.topic_id, state.partition),
            last_epoch=0,
            log_end=log_end,
        )
        request = ReportLogEndsRequest(
            broker_id=BrokerId(broker), broker_epoch=found.epochs[broker], partitions=(end,)
        )
        found.decide(leaders.report_log_ends, request)
    found.pass_ms(found.settings.report_wait_ms, 1, 2, 3, 4, 5, step_ms=CHECK_INTERVAL_MS)
    assert found.state().leader == 4
    assert reassign(found, cancel=True) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_move_within_its_replicas_is_done_at_once() -> None:
    found = cluster()
    assert reassign(found, 2, 1) is ErrorCode.NONE
    state = found.state()
    assert (state.replicas, state.removing, state.isr) == ((2, 1), (), (1, 2))


@pytest.mark.parametrize("replicas", [(), (4, 4), (4, 77)])
def test_a_move_to_nowhere_is_refused(replicas: tuple[int, ...]) -> None:
    found = cluster()
    assert reassign(found, *replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert found.state().replicas == (1, 2, 3)


def test_a_move_that_is_replaced_forgets_what_it_was_adding() -> None:
    found = cluster()
    found.beat(5)
    reassign(found, 1, 2, 4)
    reassign(found, 1, 2, 5)
    state = found.state()
    assert state.adding == (5,)
    assert state.removing == (3,)
    assert 4 not in state.replicas
