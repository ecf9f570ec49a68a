"""The fetch planner looks only at partitions that have changed, and still plans all of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.consumer.fetch_planner import PARTITIONS_PER_PLAN, FetchPlan, FetchPlanner
from odradek.consumer.fetched_chunk import UNKNOWN
from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.record_messages import FetchedPartition
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb

NAMES = [TopicPartition("orders", index) for index in range(4)]


class PlannedConsumer:
    """A planner with the leaders of its partitions, and with the streams, look-ups and checks that a consumer has."""

    def __init__(self) -> None:
        self.planner = FetchPlanner(reset="earliest")
        self.leaders: dict[TopicPartition, tuple[str, int] | None] = dict.fromkeys(NAMES)
        self.streams: dict[str, set[TopicPartition]] = {}
        self.lookups: dict[TopicPartition, int] = {}
        self.validations: dict[TopicPartition, int] = {}
        self.now_ms = 1_000

    def plan(self) -> FetchPlan:
        plan = self.planner.plan(self.leaders.get, self.now_ms)
        self.lookups |= plan.lookups
        self.validations |= plan.validations
        for endpoint, change in plan.changes.items():
            stream = self.streams.setdefault(endpoint, set())
            stream.difference_update(change.remove)
            stream.update(change.add)
        return plan

    def settle(self) -> None:
        """Plan, answer look-ups and checks, and let pauses pass, until nothing is left to do."""
        for _ in range(50):
            self.plan()
            for name, lookup_ms in self.lookups.items():
                self.planner.position_found(name, lookup_ms, 0)
            for name, epoch in self.validations.items():
                leader = self.leaders[name]
                self.planner.validated(name, epoch, 1 << 40, -1 if leader is None else leader[1])
            is_idle = not (self.lookups or self.validations or self.planner.has_undecided)
            self.lookups, self.validations = {}, {}
            wake_ms = self.planner.wake_ms(self.now_ms)
            if wake_ms is not None:
                self.now_ms = wake_ms
            elif is_idle:
                return
        raise AssertionError("the planner never settles")

    def data(self, name: TopicPartition, code: ErrorCode = ErrorCode.NONE) -> None:
        """Let the broker that the partition is fetched from send one record of epoch 1, or an error."""
        progress = self.planner.partitions[name]
        if code and progress.endpoint is not None:
            self.streams[progress.endpoint].discard(name)  # the broker ends with the error
        header = pb.FetchPartitionData(
            topic=name.topic,
            partition=name.partition,
            fetch_id=progress.fetch_id,
            error_code=code,
            next_offset=progress.fetch_offset + 1,
        )
        records = memoryview(b"" if code else b"r")
        self.planner.fetched(0, FetchedPartition(header, records), self.now_ms)

    def read(self) -> None:
        """Read the first chunk to its end."""
        head = self.planner.next_chunk()
        if head is not None:
            chunk, _ = head
            chunk.leader_epoch = 1
            self.planner.finish_chunk()


def _apply(consumer: PlannedConsumer, step: str, name: TopicPartition, draw: random.Random) -> None:
    planner = consumer.planner
    if step == "assign":
        planner.assign(draw.sample(NAMES, draw.randint(1, len(NAMES))))
    elif step == "leader":
        epoch = (consumer.leaders[name] or ("", 0))[1] + 1
        consumer.leaders[name] = draw.choice([None, ("a:1", epoch), ("b:1", epoch)])
        planner.moved([name])
    elif step == "broke":
        endpoint = draw.choice(["a:1", "b:1"])
        consumer.streams.pop(endpoint, None)
        planner.stream_broke(endpoint, consumer.now_ms)
    elif step == "read":
        consumer.read()
    elif step == "plan":
        consumer.plan()
    elif step == "settle":
        consumer.settle()
    elif name not in planner.partitions:
        return
    elif step == "seek":
        planner.seek(name, draw.randint(0, 9))
    elif step == "seek to time":
        planner.seek_to_timestamp(name, 5)
    elif step in ("pause", "resume", "suspend", "release"):
        getattr(planner, step)(name)
    elif step == "lookup failed":
        planner.lookup_failed(name, consumer.lookups.pop(name, 0))
    elif step == "at end":
        planner.lookup_at_end(name, consumer.lookups.pop(name, 0))
    elif step == "validation failed":
        planner.validated(name, consumer.validations.pop(name, 0), None, -1)
    elif step == "data":
        consumer.data(name)
    elif step == "out of range":
        consumer.data(name, ErrorCode.OFFSET_OUT_OF_RANGE)
    elif step == "refused":
        consumer.data(
            name,
            draw.choice([ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED]),
        )


STEPS = [
    "assign",
    "leader",
    "broke",
    "read",
    "plan",
    "settle",
    "seek",
    "seek to time",
    "pause",
    "resume",
    "suspend",
    "release",
    "data",
    "refused",
    "out of range",
    "lookup failed",
    "at end",
    "validation failed",
]


@settings(max_examples=400)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES)), max_size=40),
    seed=st.integers(0, 1 << 30),
)
def test_every_partition_that_can_be_fetched_is_fetched_from_its_leader(
    steps: list[tuple[str, TopicPartition]], seed: int
) -> None:
    consumer, draw = PlannedConsumer(), random.Random(seed)
    planner = consumer.planner
    planner.assign(NAMES)
    consumer.leaders = dict.fromkeys(NAMES, ("a:1", 1))
    consumer.settle()
    for step, name in steps:
        _apply(consumer, step, name, draw)
    while planner.chunks:
        consumer.read()
    consumer.settle()
    for name, progress in planner.partitions.items():
        leader = consumer.leaders[name]
        assert progress.position != UNKNOWN, f"{name} was never looked up"
        is_wanted = not progress.is_paused and not progress.is_suspended
        fetched_from = {at for at, stream in consumer.streams.items() if name in stream}
        if leader is not None:
            assert fetched_from == ({leader[0]} if is_wanted else set()), name
    gone = set(NAMES) - planner.partitions.keys()
    assert not any(stream & gone for stream in consumer.streams.values())


def test_many_partitions_are_planned_in_several_calls() -> None:
    planner = FetchPlanner(reset="earliest")
    names = [TopicPartition("wide", index) for index in range(2 * PARTITIONS_PER_PLAN + 1)]
    planner.assign(names)
    looked_up: list[TopicPartition] = []
    for part in (PARTITIONS_PER_PLAN, PARTITIONS_PER_PLAN, 1, 0):
        assert planner.has_undecided == (part > 0)
        plan = planner.plan(lambda name: ("a:1", 1), 0)
        assert len(plan.decided) == len(plan.lookups) == part
        looked_up += plan.lookups
    assert looked_up == names


@pytest.mark.parametrize("step", ["seek", "resume", "release"])
def test_only_partitions_that_changed_are_decided(step: str) -> None:
    consumer = PlannedConsumer()
    consumer.planner.assign(NAMES)
    consumer.leaders = dict.fromkeys(NAMES, ("a:1", 1))
    consumer.settle()
    _apply(consumer, step, NAMES[2], random.Random(0))
    assert consumer.plan().decided == [NAMES[2]]
