"""The simulated administrator, who changes topics, leaders, replicas and settings while faults happen."""

from __future__ import annotations

import itertools
from typing import Any

from odradek_metadata_quorum.controller.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.requests import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    NewTopic,
    Reassignment,
)
from odradek_protocol.identity import BrokerId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.records import ConfigResourceType
from tests.sim.clients import Hist
from tests.sim.cluster import Cluster
from tests.sim.history import Outcome
from tests.sim.scheduler import MS

USED = "used-"


class Admin:
    """Creates and deletes topics, moves leaders and replicas, and changes min.insync.replicas.

    It works on topics of its own and on the topics in `moved`. `settle` restores the configs of the topics in `moved`.
    """

    def __init__(
        self,
        cluster: Cluster,
        history: Hist,
        *,
        pace_us: int,
        moved: tuple[str, ...],
        uses_brokers: bool = False,
    ) -> None:
        """If `uses_brokers` is set, brokers also create topics automatically, for clients that use missing topics."""
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.pace_us = pace_us
        self.moved = moved
        self.is_stopped = False
        self._names = itertools.count()
        self._used: TopicName | None = None
        self._actions = (
            *((self._use, self._use) if uses_brokers else ()),
            self._create,
            self._create,
            self._delete,
            self._elect,
            self._move,
            self._move,
            self._change_minimum,
        )
        self.scheduler.after(pace_us, self._act)

    def settle(self) -> None:
        """Set min.insync.replicas of every topic in `moved` to 2 again, and repeat that until all of them have it."""
        self.is_stopped = True
        if any(self._minimum(name) != "2" for name in self.moved):
            for name in self.moved:
                self._set_minimum(name, "2")
            self.scheduler.after(300 * MS, self.settle)

    def _act(self) -> None:
        if self.is_stopped:
            return
        self.scheduler.random.choice(self._actions)()
        self.scheduler.after(self.scheduler.between(self.pace_us // 2, self.pace_us), self._act)

    def _create(self) -> None:
        name = f"made-{next(self._names)}"
        topic = NewTopic(name=name, partition_count=1, replication_factor=1)

        def created(results: Any) -> None:
            if results is not None and results[0].outcome.is_good:
                self.history.topics_acknowledged.append(name)

        self._call("handle_create_topics", CreateTopicsRequest(topics=(topic,)), created)

    def _use(self) -> None:
        """Let a client use a topic at some broker, which creates the topic. Sometimes the topic already exists."""
        if self._used is None or self.scheduler.chance(0.7):
            self._used = TopicName(f"{USED}{next(self._names)}")
        name = self._used
        node = self.cluster.brokers[self.scheduler.random.choice(sorted(self.cluster.brokers))]
        if node.life is None:
            return

        def created(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.scheduler.counters["topics created by brokers"] += 1
                if name not in self.history.topics_acknowledged:
                    self.history.topics_acknowledged.append(name)

        self.cluster.network.send(
            self.cluster.admin.node_id,
            node.life.process,
            node.life.create_topic,
            name,
            self.cluster.admin,
            created,
        )

    def _delete(self) -> None:
        made = [n for n in self.history.topics_acknowledged if n not in self.history.topics_deleted]
        if not made:
            return
        name = self.scheduler.random.choice(made)
        self.history.topics_deleted[name] = Outcome.UNKNOWN

        def deleted(results: Any) -> None:
            # A client that uses a deleted topic makes the broker create the topic again.
            is_gone = results is not None and results[0].outcome.is_good
            if is_gone and not name.startswith(USED):
                self.history.topics_deleted[name] = Outcome.OK

        self._call("handle_delete_topics", DeleteTopicsRequest(names=(name,)), deleted)

    def _elect(self) -> None:
        partitions = tuple(
            TopicPartition(topic.name, state.partition)
            for topic in self.cluster.log.image.topics.values()
            for state in topic.partitions
            if len(state.replicas) > 1
        )
        self._call("handle_elect_leaders", ElectLeadersRequest(partitions=partitions))

    def _move(self) -> None:
        name = self.scheduler.random.choice(self.moved)
        topic = self.cluster.log.image.topic(name)
        if topic is None:
            return
        state = self.scheduler.random.choice(topic.partitions)
        replicas = tuple(
            self.scheduler.random.sample([BrokerId(b) for b in sorted(self.cluster.brokers)], 3)
        )
        move = Reassignment(
            partition=TopicPartition(topic.name, state.partition),
            replicas=None if self.scheduler.chance(0.2) else replicas,
        )
        self._call("handle_alter_reassignments", (move,))

    def _change_minimum(self) -> None:
        name = self.scheduler.random.choice(self.moved)
        self._set_minimum(name, self.scheduler.random.choice(("2", "3")))

    def _minimum(self, topic: str) -> str | None:
        return self.cluster.log.image.topic_config(topic, "min.insync.replicas")

    def _set_minimum(self, topic: str, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC,
            resource_name=topic,
            operations=(ConfigOperation(name="min.insync.replicas", value=value),),
        )
        self._call("handle_alter_configs", AlterConfigsRequest(resources=(resource,)))

    def _call(self, method: str, request: Any, reply: Any = lambda _: None) -> None:
        controllers = self.cluster.controllers
        target = controllers[self.scheduler.random.choice(sorted(controllers))]
        if self.scheduler.chance(0.8):
            target = next((c for c in controllers.values() if c.core.is_active), target)
        self.cluster.network.send(
            self.cluster.admin.node_id,
            target.process,
            target.request,
            method,
            request,
            self.cluster.admin,
            reply,
        )
