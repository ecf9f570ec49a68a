"""A simulated cluster without random faults: a script decides which node is cut off when, and which message is late.

Some bugs need a message that is minutes old to arrive at exactly the moment when it is valid again. Fewer than one
random run in a thousand reaches such a moment; a script arranges the moment.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from odradek_broker.coordination.placement import absolute_java_hash
from odradek_broker.log.directory.checkpoints import RECOVERY_POINTS, decode_offsets
from odradek_broker.partition.events import Event
from odradek_broker.partition.leader import Leader
from odradek_metadata_quorum.controller.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import BrokerId, TopicIdPartition
from odradek_protocol.metadata.records import ConfigResourceType
from tests.sim.broker_process import BrokerProcess, ObservedHost
from tests.sim.classic_member import TOPICS
from tests.sim.clients import Producer
from tests.sim.cluster import FIRST_CLIENT, Cluster
from tests.sim.data_directory import PATH
from tests.sim.history import History
from tests.sim.population import GROUPS_TOPIC
from tests.sim.scheduler import MS, Scheduler

CONSUMED = tuple(NewTopic(name=name, partition_count=1, replication_factor=1) for name in TOPICS)


@dataclass(frozen=True, slots=True)
class Copy:
    """A captured message, and a function that delivers the message once more."""

    request: Any
    deliver: Callable[[], None]

    def adds(self, broker_id: int) -> bool:
        return any(
            broker_id == member.broker_id for item in self.request.partitions for member in item.isr
        )


OPEN: list[Stage] = []
"""Stages that were not closed. tests/sim/conftest.py closes them after each test."""


class Stage:
    """Three brokers, three controllers, and one partition with a replica on each broker. There are no random faults."""

    def __init__(
        self,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        min_insync_replicas: int = 2,
        durability: str = "replicated",
        has_groups: bool = False,
    ) -> None:
        self.scheduler = Scheduler(seed=1)
        random.seed(1)  # production code draws its retry pauses from this module
        self.cluster = Cluster(self.scheduler, has_groups=has_groups)
        OPEN.append(self)
        self.history: History[TopicIdPartition] = History()
        self.cluster.start()
        self.cluster.create_topics(
            NewTopic(
                name="stage",
                assignments=(tuple(BrokerId(b) for b in replicas),),
                configs=(
                    ("min.insync.replicas", str(min_insync_replicas)),
                    ("durability", durability),
                ),
            ),
            *((GROUPS_TOPIC, *CONSUMED) if has_groups else ()),
        )
        self.until(lambda: len(self.isr) == 3)
        self.until(lambda: all(self.life(b).host(self.partition) for b in (1, 2, 3)))
        self.run(500)
        self.held: set[str] = set()
        self._clients = itertools.count(FIRST_CLIENT)
        self._values = itertools.count(1)

    # --- actions of a script ----------------------------------------------------------------------

    def until(
        self, condition: Callable[[], bool], limit_ms: int = 20_000, *, step_us: int = MS
    ) -> None:
        """Run, in steps of `step_us`, until the condition is true. Fail if it is not true within `limit_ms`."""
        deadline = self.scheduler.now_us + limit_ms * MS
        while not condition():
            assert self.scheduler.now_us < deadline, (
                f"the condition is still false after {limit_ms} ms"
            )
            self.scheduler.run(self.scheduler.now_us + step_us)

    def run(self, duration_ms: int) -> None:
        self.scheduler.run(self.scheduler.now_us + duration_ms * MS)

    def produce(self, *, acks: int = -1, pace_ms: int = 30) -> Producer:
        """Start a producer, which runs until it is stopped."""
        return Producer(
            self.cluster,
            self.history,
            next(self._clients),
            self.partition,
            self._values,
            acks=acks,
            pace_us=pace_ms * MS,
        )

    def set_config(self, name: str, value: str) -> None:
        """Set a config of the topic `stage` through the active controller."""
        resource = AlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC,
            resource_name="stage",
            operations=(ConfigOperation(name=name, value=value),),
        )
        active = next(c for c in self.cluster.controllers.values() if c.core.is_active)
        active.request(
            "handle_alter_configs",
            AlterConfigsRequest(resources=(resource,)),
            self.cluster.admin,
            lambda _: None,
        )

    def cut_off(self, broker_id: int, others: Iterable[int]) -> None:
        pairs = {(broker_id, o) for o in others} | {(o, broker_id) for o in others}
        self.cluster.network.set_cut(self.cluster.network.cut | pairs)

    def join(self) -> None:
        self.cluster.network.set_cut(())

    def keep_copies(self, method: str) -> list[Copy]:
        """Return a list to which a copy of each call of this method is added from now on. While the method is in
        `held`, the original is not delivered.
        """
        kept: list[Copy] = []
        network = self.cluster.network
        original = network.send

        def send(source: int, target: Any, action: Any, *args: Any) -> None:
            if args and args[0] == method:
                kept.append(Copy(args[1], lambda: self._deliver(*args)))
                if method in self.held:
                    return
            original(source, target, action, *args)

        network.send = send  # type: ignore[method-assign]
        return kept

    def _deliver(self, method: str, request: Any, reply_to: Any, _reply: Any) -> None:
        active = next(c for c in self.cluster.controllers.values() if c.core.is_active)
        active.call(method, request, reply_to, lambda _: None)

    # --- state ------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicIdPartition:
        topic = self.cluster.log.image.topic("stage")
        assert topic is not None
        return TopicIdPartition(topic.topic_id, topic.partitions[0].partition)

    @property
    def state(self) -> Any:
        topic = self.cluster.log.image.topic("stage")
        return topic.partitions[0] if topic is not None and topic.partitions else None

    @property
    def isr(self) -> tuple[int, ...]:
        return self.state.isr if self.state is not None else ()

    def coordinator_of(self, group_id: str) -> int:
        """Return the broker that leads the group's partition in the controllers' metadata; -1 if there is none."""
        topic = self.cluster.log.image.topic(GROUPS_TOPIC.name)
        if topic is None:
            return -1
        return topic.partitions[absolute_java_hash(group_id) % len(topic.partitions)].leader

    def close(self) -> None:
        """Cancel all running tasks."""
        self.cluster.close()

    def life(self, broker_id: int) -> BrokerProcess:
        life = self.cluster.brokers[broker_id].life
        assert life is not None
        return life

    def step(self, broker_id: int, event: Event) -> None:
        """Pass an event to the replica on this broker."""
        self.life(broker_id).loop.run_here(self.hosted(broker_id).step, event)

    def hosted(self, broker_id: int) -> ObservedHost:
        host = self.life(broker_id).host(self.partition)
        assert host is not None
        return host

    def leading(self, broker_id: int) -> Leader:
        leading = self.hosted(broker_id).replica._leading
        assert leading is not None
        return leading

    def log_end(self, broker_id: int) -> int:
        return self.hosted(broker_id).replica.log_end

    def checkpointed(self, broker_id: int) -> int:
        """Return the recovery point on the broker's disk, which its next start would read."""
        disk = self.cluster.brokers[broker_id].disk
        return decode_offsets(disk.storage.read(PATH / RECOVERY_POINTS))[self.partition]

    def lose_power(self, broker_id: int, *, keep: int) -> None:
        """Switch the machine off. Exactly the records below offset `keep` survive."""
        node = self.cluster.brokers[broker_id]
        node.crash()
        node.disk.keep_only(self.partition, keep)

    def is_live(self, broker_id: int) -> bool:
        broker = self.cluster.log.image.brokers.get(BrokerId(broker_id))
        life = self.cluster.brokers[broker_id].life
        return (
            broker is not None
            and broker.is_live
            and life is not None
            and life.broker_epoch == broker.broker_epoch
        )
