"""Leader elections on request, preferred or unclean, and the automatic balance of preferred
leaders.
"""

from __future__ import annotations

from typing import Any

from odradek_metadata_quorum.controller import leaders
from odradek_metadata_quorum.controller.leaders import CHECK_INTERVAL_MS
from odradek_metadata_quorum.controller.requests import (
    ElectLeadersRequest,
    LogEnd,
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
from odradek_protocol.metadata.configs import definitions
from odradek_protocol.metadata.records import NO_LEADER, ConfigResourceType, RestartClass
from tests.unit.controller.cluster import Cluster, cluster_with_topic

BROKER = ConfigResourceType.BROKER


def test_preferred_leaders_are_elected_by_command() -> None:
    found = cluster_with_topic()
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)

    def elect(**request: Any) -> dict[str, ErrorCode]:
        results = found.decide(leaders.elect_leaders, ElectLeadersRequest(**request))
        return {str(result.partition): result.outcome.error for result in results}

    named = (
        TopicPartition(TopicName("t"), PartitionIndex(0)),
        TopicPartition(TopicName("x"), PartitionIndex(0)),
    )
    assert elect(partitions=named) == {
        "t-0": ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "x-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    found.alter_partition((1, 2, 3))
    before = found.state().leader_epoch
    assert elect() == {"t-0": ErrorCode.NONE}
    assert (found.state().leader, found.state().leader_epoch) == (1, before + 1)
    assert elect() == {}, "nothing to do, nothing to tell"
    assert elect(partitions=named[:1]) == {"t-0": ErrorCode.ELECTION_NOT_NEEDED}


def test_an_unclean_election_by_command_takes_a_live_replica() -> None:
    found = Cluster()
    found.start(1, 2)
    found.create(assignments=((1, 2),))
    found.kill(2, 1)
    found.kill(1)
    found.register(2, RestartClass.PROCESS)
    found.beat(2)
    request = ElectLeadersRequest(unclean=True)
    (result,) = found.decide(leaders.elect_leaders, request)
    assert result.outcome.is_good
    state = found.state()
    assert (state.leader, state.isr, state.recovering) == (2, (2,), True)
    assert found.decide(leaders.elect_leaders, request) == ()


def test_an_unclean_election_by_command_counts_no_log_end_of_an_earlier_life() -> None:
    found = cluster_with_topic()
    found.set_config("unclean.leader.election.enable", "true", topic="t")
    found.alter_partition((1,))
    found.kill(1, 2, 3)
    wait_ms = int(definitions(BROKER)["unclean.recovery.wait.ms"].default)
    found.pass_ms(wait_ms + CHECK_INTERVAL_MS, 2, 3, step_ms=CHECK_INTERVAL_MS)
    state = found.state()
    assert state.leader == NO_LEADER
    partition = TopicIdPartition(state.topic_id, state.partition)

    def tell(broker_id: int, log_end: int) -> None:
        assert partition in found.heartbeat(broker_id).report_log_ends
        told = (LogEnd(partition=partition, last_epoch=0, log_end=log_end),)
        found.decide(
            leaders.report_log_ends,
            ReportLogEndsRequest(
                broker_id=BrokerId(broker_id),
                broker_epoch=found.epochs[broker_id],
                partitions=told,
            ),
        )

    tell(2, 100)
    found.register(2, RestartClass.POWER)  # and what it told may be gone
    found.beat(2)
    tell(3, 50)
    request = ElectLeadersRequest(
        unclean=True, partitions=(TopicPartition(TopicName("t"), PartitionIndex(0)),)
    )
    (result,) = found.decide(leaders.elect_leaders, request)
    assert result.outcome.is_good
    assert found.state().leader == 3


def test_leaderships_go_back_by_themselves_when_too_many_are_elsewhere() -> None:
    found = Cluster()
    found.start(1, 2, 3)
    found.create("b", partitions=30, replicas=3)
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    for state in list(found.image.partitions()):
        found.alter_partition((1, 2, 3), index=state.partition, topic="b")
    assert all(state.leader != 1 for state in found.image.partitions())
    found.pass_ms(298_000, 1, 2, 3, step_ms=1000)
    assert all(state.leader != 1 for state in found.image.partitions())
    found.pass_ms(3_000, 1, 2, 3, step_ms=1000)
    assert all(state.leader == state.replicas[0] for state in found.image.partitions())


def test_the_balance_can_be_switched_off() -> None:
    found = cluster_with_topic()
    found.set_config("auto.leader.rebalance.enable", "false")
    found.kill(1, 2, 3)
    found.register(1, RestartClass.PROCESS)
    found.beat(1)
    found.alter_partition((1, 2, 3))
    found.pass_ms(700_000, 1, 2, 3, step_ms=1000)
    assert found.state().leader == 2
