"""A controller whose log commits at once, or on request, with brokers that respond.

It is the production controller with its records, not a mock; a list stands in for the Raft log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from odradek_metadata_quorum.controller import (
    Controller,
    ControllerSettings,
    Decision,
    configs,
    partitions,
    registration,
    topics,
)
from odradek_metadata_quorum.controller.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
)
from odradek_metadata_quorum.controller.requests import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResult,
    CreateTopicsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    NewTopic,
    RegisterRequest,
    RegisterResponse,
    TopicResult,
)
from odradek_metadata_quorum.controller.workspace import Workspace
from odradek_protocol.identity import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    TopicIdPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.codec import decode_batch
from odradek_protocol.metadata.features import OWN_MAXIMA, OWN_MINIMA
from odradek_protocol.metadata.image import MetadataImage, PartitionState
from odradek_protocol.metadata.records import ConfigResourceType, MetadataRecord, RestartClass

P = ParamSpec("P")
T = TypeVar("T")
CLUSTER_ID = "test-cluster"


@dataclass
class Cluster:
    """One controller and the brokers around it, at one moment of time."""

    settings: ControllerSettings = field(
        default_factory=lambda: ControllerSettings(cluster_id=CLUSTER_ID)
    )
    seed: int = 1
    now_ms: int = 0
    epoch: int = 0
    commits_at_once: bool = True
    log: list[tuple[int, int, tuple[MetadataRecord, ...]]] = field(default_factory=list)
    epochs: dict[int, BrokerEpoch] = field(default_factory=dict)
    lives: int = 0

    def __post_init__(self) -> None:
        self.controller = Controller(self.settings, random.Random(self.seed))
        self.unreplayed = 0
        self.activate()

    # --- the quorum

    @property
    def image(self) -> MetadataImage:
        return self.controller.committed

    def activate(self) -> None:
        """Let this controller win an election."""
        self.epoch += 1
        for decision in self.controller.became_active(self.epoch, self.now_ms):
            self.commit(decision)

    def fail_over(self, *, lost: int = 0) -> None:
        """Let another member take over; the last `lost` uncommitted batches are lost."""
        keep = len(self.log) - lost
        assert keep >= self.unreplayed, "what is committed is not lost"
        del self.log[keep:]
        self.controller.resigned()
        self.replay()
        before = self.controller
        self.controller = Controller(self.settings, random.Random(self.seed + self.epoch))
        for offset, epoch, records in self.log:
            for record in records:
                self.controller.replay(MetadataOffset(offset), epoch, record)
        assert self.controller.committed == before.committed
        commits_at_once, self.commits_at_once = self.commits_at_once, True
        self.activate()
        self.commits_at_once = commits_at_once

    def commit(self, decision: Decision[Any]) -> Any:
        """Append a decision's records, and return its response."""
        if decision.records:
            assert decode_batch(decision.payload).records == decision.records
            self.log.append((len(self.log) + 1, self.epoch, decision.records))
            if self.commits_at_once:
                self.replay()
        return decision.response

    def decide(
        self,
        handler: Callable[Concatenate[Workspace, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a handler now and append its records; returns its response."""
        decision = self.controller.decide(self.now_ms, handler, *args, **kwargs)
        self.commit(decision)
        return decision.response

    def replay(self, count: int | None = None) -> None:
        """Commit the appended batches, or the first `count` of them."""
        end = len(self.log) if count is None else self.unreplayed + count
        for offset, epoch, records in self.log[self.unreplayed : end]:
            for record in records:
                self.controller.replay(MetadataOffset(offset), epoch, record)
            self.image.check()
        self.unreplayed = max(self.unreplayed, end)

    # --- brokers

    def register(
        self,
        broker_id: int,
        restart_class: RestartClass = RestartClass.POWER,
        *,
        previous_broker_epoch: int | None = None,
        directory: int | None = None,
        rack: str | None = None,
        lost_partitions: frozenset[TopicIdPartition] = frozenset(),
        **more: Any,
    ) -> RegisterResponse:
        """Register a new process of a broker; `more` are fields of the request."""
        self.lives += 1
        previous = self.epochs.get(broker_id, NO_BROKER_EPOCH)
        if previous_broker_epoch is not None:
            previous = BrokerEpoch(previous_broker_epoch)
        request = RegisterRequest(
            cluster_id=CLUSTER_ID,
            broker_id=BrokerId(broker_id),
            incarnation_id=IncarnationId(self.lives.to_bytes(16, "big")),
            directory_ids=(
                DirectoryId((broker_id if directory is None else directory).to_bytes(16, "big")),
            ),
            restart_class=restart_class,
            previous_broker_epoch=previous,
            rack=rack,
            lost_partitions=lost_partitions,
            **{
                "features": OWN_MAXIMA,
                "feature_minima": OWN_MINIMA,
                **more,
            },
        )
        response: RegisterResponse = self.decide(registration.register, request)
        if response.outcome.is_good:
            self.epochs[broker_id] = response.broker_epoch
        return response

    def beat(self, *broker_ids: int, image_offset: int | None = None, **wishes: Any) -> None:
        """Send heartbeats of these brokers."""
        for broker_id in broker_ids:
            self.heartbeat(broker_id, image_offset=image_offset, **wishes)

    def heartbeat(
        self,
        broker_id: int,
        *,
        image_offset: int | None = None,
        broker_epoch: int | None = None,
        **wishes: Any,
    ) -> HeartbeatResponse:
        """Send one heartbeat of a broker whose metadata is up to date unless the arguments say
        otherwise.
        """
        request = HeartbeatRequest(
            broker_id=BrokerId(broker_id),
            broker_epoch=self.epochs[broker_id]
            if broker_epoch is None
            else BrokerEpoch(broker_epoch),
            image_offset=self.image.offset if image_offset is None else image_offset,
            **wishes,
        )
        response: HeartbeatResponse = self.commit(self.controller.heartbeat(self.now_ms, request))
        return response

    def start(self, *broker_ids: int, racks: dict[int, str] | None = None) -> None:
        """Register brokers and have them unfenced."""
        for broker_id in broker_ids:
            rack = None if racks is None else racks[broker_id]
            self.register(broker_id, rack=rack)
            self.beat(broker_id)

    def break_stream(self, broker_id: int) -> None:
        """End a broker's heartbeat stream, as when its process dies."""
        self.controller.stream_broken(BrokerId(broker_id), self.now_ms)

    def pass_ms(self, duration_ms: int, *alive: int, step_ms: int = 50) -> None:
        """Let time pass, tick by tick, while the brokers in `alive` send heartbeats."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            self.beat(*alive)
            self.tick()

    def tick(self) -> int:
        """Tick once, and again while the controller asks for it; return how many batches it
        wrote.
        """
        batches = 0
        while True:
            decisions = self.controller.tick(self.now_ms)
            for decision in decisions:
                self.commit(decision)
            batches += len(decisions)
            if not self.controller.is_repairing:
                return batches

    def kill(self, broker_id: int, *alive: int) -> None:
        """Kill the broker; it is fenced one grace period later."""
        self.break_stream(broker_id)
        self.pass_ms(self.settings.grace_ms, *alive)

    # --- topics

    def create(
        self,
        name: str = "t",
        *,
        partitions: int = -1,
        replicas: int = -1,
        assignments: tuple[tuple[int, ...], ...] = (),
        **configs: str,
    ) -> TopicResult:
        """Create a topic. `configs` are named with _ in place of the dots."""
        topic = NewTopic(
            name=name,
            partition_count=partitions,
            replication_factor=replicas,
            assignments=tuple(tuple(map(BrokerId, brokers)) for brokers in assignments),
            configs=tuple((key.replace("_", "."), value) for key, value in configs.items()),
        )
        (result,) = self.decide(topics.create_topics, CreateTopicsRequest(topics=(topic,)))
        assert isinstance(result, TopicResult)
        return result

    def state(self, index: int = 0, name: str = "t") -> PartitionState:
        """Return a partition's committed state."""
        topic = self.image.topic(name)
        assert topic is not None, name
        return topic.partitions[index]

    def alter_partition(
        self,
        isr: tuple[int, ...],
        *,
        index: int = 0,
        topic: str = "t",
        sender: int | None = None,
        sender_epoch: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        member_epochs: dict[int, int] | None = None,
        recovering: bool = False,
    ) -> AlterPartitionResult | ErrorCode:
        """Send a leader's ISR proposal; every field that is not given has the right value."""
        state = self.state(index, topic)
        broker_id = state.leader if sender is None else BrokerId(sender)
        epochs = {**self.epochs, **(member_epochs or {})}
        request = AlterPartitionRequest(
            broker_id=broker_id,
            broker_epoch=BrokerEpoch(
                self.epochs[broker_id] if sender_epoch is None else sender_epoch
            ),
            partitions=(
                AlterPartitionItem(
                    partition=TopicIdPartition(state.topic_id, state.partition),
                    leader_epoch=state.leader_epoch if leader_epoch is None else leader_epoch,
                    partition_epoch=(
                        state.partition_epoch if partition_epoch is None else partition_epoch
                    ),
                    isr=tuple((BrokerId(b), BrokerEpoch(epochs.get(b, -1))) for b in isr),
                    recovering=recovering,
                ),
            ),
        )
        response = self.decide(partitions.alter_partitions, request)
        if response.error is not ErrorCode.NONE:
            assert isinstance(response.error, ErrorCode)
            return response.error
        result = response.partitions[0]
        assert isinstance(result, AlterPartitionResult)
        return result

    def set_config(
        self,
        name: str,
        value: str,
        *,
        topic: str | None = None,
    ) -> Any:
        """Set one config of a topic, or of all brokers."""
        resource = AlterConfigsResource(
            resource_type=ConfigResourceType.BROKER if topic is None else ConfigResourceType.TOPIC,
            resource_name=topic or "",
            operations=(ConfigOperation(name=name, value=value),),
        )
        (outcome,) = self.decide(configs.alter_configs, AlterConfigsRequest(resources=(resource,)))
        return outcome


def told(state: PartitionState) -> str:
    """Describe a partition in one line: leader, leader epoch, ISR, and those further fields that
    are set.
    """
    leader = "none" if state.leader < 0 else str(state.leader)
    parts = [f"leader {leader}", f"epoch {state.leader_epoch}", f"isr {_list(state.isr)}"]
    for name in ("elr", "lost", "adding", "removing"):
        if members := getattr(state, name):
            parts.append(f"{name} {_list(members)}")
    if state.recovering:
        parts.append("recovering")
    return " ".join(parts)


def _list(members: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, members)) or "-"


def cluster(brokers: int = 3) -> Cluster:
    """Return a cluster with live brokers 1, 2, ..."""
    found = Cluster()
    found.start(*range(1, brokers + 1))
    return found


def cluster_with_topic() -> Cluster:
    """Return a cluster with brokers 1 to 3, and the topic `t` on all of them."""
    found = cluster()
    found.create(assignments=((1, 2, 3),))
    return found


def fenced(found: Cluster) -> set[int]:
    """Return the ids of fenced brokers."""
    return {b.broker_id for b in found.image.brokers.values() if b.fenced}
