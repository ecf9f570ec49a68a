"""Members with librdkafka change the group protocol one by one while records flow."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.rolling_members import Ledger, Load, MemberThread, until_read, until_shared

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 6
TIMEOUT_S = 60.0  # so high that a slow machine does not exceed it
_COORDINATOR_MOVES = (
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class Group:
    """A group that migrates from one group protocol to the other, and back."""

    def __init__(self, bootstrap: str, topic: str, strategy: str) -> None:
        self.ledger = Ledger()
        self.members: list[MemberThread] = []
        self._topic = topic
        self._strategy = strategy
        self._made = 0
        self._admin_config = {"bootstrap.servers": bootstrap}
        self.admin = admin.AdminClient(self._admin_config)
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1000,
        }

    def add(self, protocol: str) -> None:
        own: dict[str, Any] = {"group.protocol": protocol}
        if protocol == "classic":
            own |= {
                "partition.assignment.strategy": self._strategy,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
            }
        self._made += 1
        name = f"{protocol}-{self._made}"
        self.members.append(MemberThread(name, self._topic, self.ledger, {**self._config, **own}))

    def replace_each(self, protocol: str, pause: Any = None) -> None:
        for position in range(len(self.members)):
            self.add(protocol)
            self.members.pop(0).leave()
            if position == 1 and pause is not None:
                pause()
            self.settle()

    def settle(self) -> None:
        until_shared(self.ledger, self.members, PARTITIONS)

    def coordinator(self) -> int:
        """Return the broker that coordinates the group; retry while it moves, with a new client
        each time.
        """
        name = f"g-{self._topic}"
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            client = admin.AdminClient(self._admin_config)
            try:
                described = client.describe_consumer_groups([name])[name].result(TIMEOUT_S)
                return int(described.coordinator.id)
            except ck.KafkaException as error:
                moves = error.args[0].code() in _COORDINATOR_MOVES
                if not moves or time.monotonic() > deadline:
                    raise

    def kind(self) -> str:
        listed = self.admin.list_consumer_groups().result(TIMEOUT_S).valid
        [mine] = [one for one in listed if one.group_id == f"g-{self._topic}"]
        return str(mine.type.name).lower()


def create(group: Group, topic: str, replicas: int) -> None:
    new = admin.NewTopic(topic, PARTITIONS, replicas)
    group.admin.create_topics([new])[topic].result(TIMEOUT_S)


@pytest.mark.scenario("confluent-kafka", "migration")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_rolls_over_to_the_consumer_protocol_and_back(
    bootstrap: str, topic: str, strategy: str
) -> None:
    group = Group(bootstrap, topic, strategy)
    create(group, topic, 1)
    load = Load(bootstrap, topic)
    for _ in range(3):
        group.add("classic")
    group.settle()
    assert group.kind() == "classic"
    group.replace_each("consumer")
    assert group.kind() == "consumer"
    group.replace_each("classic")
    assert group.kind() == "classic"
    until_read(group.ledger, load.finish())
    for member in group.members:
        member.leave()
    assert not group.ledger.owned_twice


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_the_coordinator_dies_while_members_of_both_kinds_are_in_the_group(
    three: EmbeddedCluster, topic: str, strategy: str
) -> None:
    group = Group(three.kafka_bootstrap, topic, strategy)
    create(group, topic, 3)
    load = Load(three.kafka_bootstrap, topic)

    def kill_the_coordinator() -> None:
        broker = three.brokers[group.coordinator()]
        broker.kill()
        group.settle()
        broker.start()
        broker.wait_ready(TIMEOUT_S)

    for _ in range(3):
        group.add("classic")
    group.settle()
    group.replace_each("consumer", kill_the_coordinator)
    group.replace_each("classic", kill_the_coordinator)
    assert group.kind() == "classic"
    until_read(group.ledger, load.finish())
    for member in group.members:
        member.leave()
    assert not group.ledger.owned_twice
