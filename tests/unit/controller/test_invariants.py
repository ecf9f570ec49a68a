"""Invariants I1, I6 and I8 hold after any sequence of events and any delay of commits.

Random sequences of registrations, heartbeats, broken streams, proposals, configs, commands, moves,
commits, and failovers that lose uncommitted records run against the production controller. After
each step:

- every partition satisfies `check_partition` (I6; distinct replicas; a leader in its ISR), in the
  committed metadata and in the working copy;
- a leader epoch has at most one leader (I1), and no epoch falls (I8);
- no fenced broker stays leader or in an ISR once the controller has ticked;
- the working copy is exactly the committed metadata plus what is in flight.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from odradek_metadata_quorum.controller import leaders, partitions, topics
from odradek_metadata_quorum.controller.requests import (
    DeleteTopicsRequest,
    ElectLeadersRequest,
    LogEnd,
    Reassignment,
    ReportLogEndsRequest,
)
from odradek_protocol.identity import (
    BrokerId,
    MetadataOffset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from odradek_protocol.metadata.image import PartitionState
from odradek_protocol.metadata.records import NO_LEADER, RestartClass
from tests.unit.controller.cluster import Cluster

BROKERS = (1, 2, 3, 4)
brokers = st.sampled_from(BROKERS)


class ControllerMachine(RuleBasedStateMachine):
    """One cluster, and the events that may happen to it."""

    @initialize(minimum=st.sampled_from(["1", "2", "3"]), unclean=st.booleans())
    def create_cluster(self, minimum: str, unclean: bool) -> None:
        self.cluster = Cluster()
        self.cluster.start(*BROKERS)
        self.cluster.set_config("unclean.recovery.wait.ms", "1000")
        self.cluster.set_config("leader.imbalance.check.interval.seconds", "1")
        self.cluster.create(
            assignments=((1, 2, 3), (2, 3, 4), (3, 4, 1), (4,)),
            min_insync_replicas=minimum,
            unclean_leader_election_enable=str(unclean).lower(),
        )
        self.leaders: dict[tuple[TopicId, int, int], BrokerId] = {}
        self.epochs: dict[tuple[TopicId, int], tuple[int, int]] = {}
        self.broker_epochs: dict[BrokerId, int] = {}

    @rule(broker=brokers, restart_class=st.sampled_from(RestartClass), disk=st.booleans())
    def restart(self, broker: int, restart_class: RestartClass, disk: bool) -> None:
        self.cluster.break_stream(broker)
        self.cluster.register(broker, restart_class, directory=broker if disk else 90 + broker)

    @rule(
        broker=brokers,
        want_fence=st.booleans(),
        want_shutdown=st.integers(0, 9).map(lambda n: n == 0),
        lag=st.integers(0, 3),
    )
    def beat(self, broker: int, want_fence: bool, want_shutdown: bool, lag: int) -> None:
        self.cluster.heartbeat(
            broker,
            want_fence=want_fence,
            want_shutdown=want_shutdown,
            image_offset=self.cluster.image.offset - lag,
        )

    @rule()
    def all_beat(self) -> None:
        self.cluster.beat(*BROKERS)

    @rule(broker=brokers)
    def break_stream(self, broker: int) -> None:
        self.cluster.break_stream(broker)

    @rule(duration_ms=st.sampled_from([50, 200, 600, 1200, 3500]))
    def pass_time(self, duration_ms: int) -> None:
        self.cluster.now_ms += duration_ms
        self.cluster.tick()
        for state in self.cluster.controller.image.partitions():
            for member in state.isr:
                assert not self.cluster.controller.image.brokers[member].fenced, state

    @rule(
        index=st.integers(0, 3),
        members=st.sets(brokers, max_size=4),
        stale=st.integers(0, 9),
        recovering=st.booleans(),
    )
    def propose(self, index: int, members: set[int], stale: int, recovering: bool) -> None:
        if self.cluster.image.topic("t") is None:
            return
        state = self.cluster.state(index)
        if state.leader == NO_LEADER:
            return
        isr = tuple(b for b in state.replicas if b in members or b == state.leader)
        self.cluster.alter_partition(
            isr,
            index=index,
            partition_epoch=state.partition_epoch - (stale == 0),
            leader_epoch=state.leader_epoch - (stale == 1),
            member_epochs={isr[-1]: 0} if stale == 2 else None,
            recovering=recovering and state.recovering,
        )

    @rule(unclean=st.booleans())
    def elect(self, unclean: bool) -> None:
        cluster = self.cluster
        cluster.decide(leaders.elect_leaders, ElectLeadersRequest(unclean=unclean))

    @rule(minimum=st.sampled_from(["1", "2", "3"]))
    def set_minimum(self, minimum: str) -> None:
        if self.cluster.image.topic("t") is not None:
            self.cluster.set_config("min.insync.replicas", minimum, topic="t")

    @rule(index=st.integers(0, 3), replicas=st.permutations(BROKERS), count=st.integers(0, 4))
    def move(self, index: int, replicas: list[int], count: int) -> None:
        partition = TopicPartition(TopicName("t"), PartitionIndex(index))
        target = tuple(map(BrokerId, replicas[:count])) or None
        self.cluster.decide(
            partitions.alter_reassignments,
            (Reassignment(partition=partition, replicas=target),),
        )

    @rule(broker=brokers, last_epoch=st.integers(0, 5), log_end=st.integers(0, 100))
    def report(self, broker: int, last_epoch: int, log_end: int) -> None:
        asked = self.cluster.heartbeat(broker).report_log_ends
        request = ReportLogEndsRequest(
            broker_id=BrokerId(broker),
            broker_epoch=self.cluster.epochs[broker],
            partitions=tuple(
                LogEnd(partition=partition, last_epoch=last_epoch, log_end=log_end)
                for partition in asked
            ),
        )
        self.cluster.decide(leaders.report_log_ends, request)

    @rule(broker=brokers)
    def lose_directory(self, broker: int) -> None:
        known = self.cluster.controller.image.brokers[BrokerId(broker)]
        self.cluster.heartbeat(broker, offline_directory_ids=known.directory_ids)

    @rule(again=st.booleans())
    def delete(self, again: bool) -> None:
        cluster = self.cluster
        request = DeleteTopicsRequest(names=("t",))
        cluster.decide(topics.delete_topics, request)
        cluster.create("t" if again else "u", partitions=4, replicas=2)

    @rule(at_once=st.booleans())
    def commits(self, at_once: bool) -> None:
        self.cluster.commits_at_once = at_once
        if at_once:
            self.cluster.replay()

    @rule(lost=st.integers(0, 5))
    def fail_over(self, lost: int) -> None:
        uncommitted = len(self.cluster.log) - self.cluster.unreplayed
        self.cluster.fail_over(lost=min(lost, uncommitted))
        for broker_id, broker in self.cluster.image.brokers.items():
            self.cluster.epochs[broker_id] = broker.broker_epoch

    @invariant()
    def images_hold_their_invariants(self) -> None:
        self.cluster.image.check()
        self.cluster.controller.image.check()

    @invariant()
    def the_working_image_is_the_committed_one_and_what_is_in_flight(self) -> None:
        expected = self.cluster.image.copy()
        for offset, epoch, records in self.cluster.log[self.cluster.unreplayed :]:
            for record in records:
                expected.replay(MetadataOffset(offset), epoch, record)
        assert self.cluster.controller.image == expected

    @invariant()
    def one_leader_an_epoch_and_no_epoch_falls(self) -> None:
        for state in self.cluster.image.partitions():
            self.watch(state)
        for broker_id, broker in self.cluster.image.brokers.items():
            assert broker.broker_epoch >= self.broker_epochs.get(broker_id, -1)
            self.broker_epochs[broker_id] = broker.broker_epoch

    def watch(self, state: PartitionState) -> None:
        key = (state.topic_id, int(state.partition))
        known = self.leaders.setdefault((*key, state.leader_epoch), state.leader)
        assert known == state.leader, f"two leaders in one epoch: {known}, {state}"
        before = self.epochs.get(key, (0, 0))
        after = (state.leader_epoch, state.partition_epoch)
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        self.epochs[key] = after


ControllerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestController = ControllerMachine.TestCase


def test_a_partition_is_named_by_topic_id() -> None:
    cluster = Cluster()
    cluster.start(1)
    created = cluster.create()
    key = TopicIdPartition(created.topic_id, PartitionIndex(0))
    assert cluster.image.partition(key.topic_id, key.partition) == cluster.state()
