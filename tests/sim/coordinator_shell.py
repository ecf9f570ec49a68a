"""Passes requests of simulated group members to the production group coordinator on a simulated broker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek_broker.coordination.group_coordinator import GroupCoordinator
from odradek_broker.coordination.hosted_shard import CoordinatorError, HostedShard
from odradek_broker.groups import messages as gm
from odradek_broker.groups.group_shard import GroupShard
from odradek_protocol.identity import GroupId, TopicIdPartition, TopicPartition
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.sim.network import Stream

if TYPE_CHECKING:
    from tests.sim.broker_process import BrokerProcess

SESSION_MS = 4_000  # longer than a leader's lease, as every session timeout must be
REBALANCE_MS = 4_000


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One request of a group member."""

    call_id: int
    request: Any  # a message of groups.messages


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """A DeleteGroups request for one group; the response is an ErrorCode."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """An OffsetDelete request."""

    group_id: GroupId
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """A DescribeGroups request for one group."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class ListGroups:
    """A ListGroups request to the coordinator of this group."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """A response: a message of groups.messages, or the error code with which the coordinator refused the request."""

    call_id: int
    response: Any


class CoordinatorShell:
    """The listener of one BrokerProcess for group members and group tools."""

    def __init__(self, life: BrokerProcess, coordinator: GroupCoordinator) -> None:
        self._life = life
        self._scheduler = life.scheduler
        self.coordinator = coordinator
        self._handlers: dict[type[Any], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            gm.JoinGroup: self.coordinator.join,
            gm.SyncGroup: self.coordinator.sync,
            gm.Heartbeat: self.coordinator.heartbeat,
            gm.LeaveGroup: self.coordinator.leave,
            gm.ConsumerHeartbeat: self.coordinator.consumer_heartbeat,
            gm.CommitOffsets: self.coordinator.commit,
            gm.FetchOffsets: self.coordinator.fetch_offsets,
            DeleteGroup: lambda call: self.coordinator.delete_group(call.group_id),
            DeleteOffsets: lambda call: self.coordinator.delete_offsets(
                call.group_id, call.partitions
            ),
            DescribeGroup: lambda call: self.coordinator.describe(call.group_id),
            ListGroups: self._list,
        }
        self._watch_loads()

    async def _list(self, _: ListGroups) -> list[gm.GroupListing]:
        return list(self.coordinator.listings())

    def _watch_loads(self) -> None:
        """Check I11: a shard starts only after it has replayed all records of its log, and only if all are
        committed.
        """
        host = self.coordinator._host
        load = host._load

        async def watched(hosted: HostedShard[GroupShard]) -> bool:
            is_loaded = await load(hosted)
            topic = self._life.image.topic(OFFSETS_TOPIC)
            if is_loaded and topic is not None:
                self._scheduler.counters["coordinator loads"] += 1
                self._life.cluster.invariants.coordinator_begins(
                    self._life,
                    self._life.host(TopicIdPartition(topic.topic_id, hosted.partition)),
                )
            return is_loaded

        host._load = watched  # type: ignore[method-assign]

    def accept(self, stream: Stream) -> None:
        """Accept a member's connection."""

        def on_message(call: GroupCall) -> None:
            self._life.loop.spawn(self._respond(stream, call))

        stream.on_message[1] = on_message

    async def _respond(self, stream: Stream, call: GroupCall) -> None:
        try:
            response = await self._handlers[type(call.request)](call.request)
        except CoordinatorError as refused:
            response = refused.code
        else:
            self._note_move(call.request.group_id)
        stream.send(self._life.process, GroupAnswer(call.call_id, response))

    def _note_move(self, group_id: str) -> None:
        """Count a move of the group's coordinator to this broker process, and a change of the group's protocol."""
        coordinators, me = self._life.cluster.coordinators, self._life.incarnation
        moved = coordinators.get(group_id, me) != me
        self._scheduler.counters["coordinator moves with members live"] += moved
        coordinators[group_id] = me
        kind = next(
            (
                type(shard.table.groups[GroupId(group_id)]).__name__
                for shard in self.coordinator._host.active_shards()
                if group_id in shard.table.groups
            ),
            "",
        )
        before = self._life.cluster.group_kinds.setdefault(group_id, kind)
        self._scheduler.counters["groups migrated"] += kind != before
        self._life.cluster.group_kinds[group_id] = kind
