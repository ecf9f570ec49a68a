"""The consumer groups of a simulated run: their members, the faults of members, and the check that all
groups recover.
"""

from __future__ import annotations

from typing import Final

from odradek_metadata_quorum.controller.requests import NewTopic
from odradek_protocol.identity import (
    GroupId,
    PartitionIndex,
    TopicIdPartition,
    TopicPartition,
)
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.sim.classic_member import TOPICS, ClassicMember
from tests.sim.cluster import Cluster
from tests.sim.consumer_member import ConsumerMember
from tests.sim.group_admin import GroupAdmin
from tests.sim.group_history import GroupHistory
from tests.sim.member import Member, Unanswered
from tests.sim.scheduler import MS, SECOND

FIRST_MEMBER: Final = 301
CLASSIC: Final = GroupId("classic")
CONSUMER: Final = GroupId("consumer")
MIXED: Final = GroupId("mixed")
ALONE: Final = GroupId("alone")
GROUPS: Final = (CLASSIC, CONSUMER, MIXED)
GROUPS_TOPIC: Final = NewTopic(
    name=OFFSETS_TOPIC,
    partition_count=2,
    replication_factor=3,
    configs=(
        ("min.insync.replicas", "2"),
        ("cleanup.policy", "compact"),
        ("durability", "fsync"),  # the brokers' default for internal topics
    ),
)


class Observer(Member):
    """An administrator's tool that sends requests at random times to the coordinator. It finds the coordinator in the
    metadata of any broker, even if that metadata is old.
    """

    async def _live(self) -> None:
        partitions = self.partitions()
        if partitions and not self.is_stopped:
            self._leader_epoch = -1
            await self.fetch_positions(partitions)
        await self.pause(200, 1_500)
        if self.scheduler.chance(0.2):
            self._disconnect()

    async def leave(self) -> None:
        """Do nothing, because the tool is no member of a group."""

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that groups may consume."""
        image = self.cluster.log.image
        topics = [t for name in TOPICS if (t := image.topic(name)) is not None]
        return [TopicPartition(t.name, s.partition) for t in topics for s in t.partitions]

    def read_all(self) -> None:
        """Read all offsets once more at the end of a run. Repeat the read until there is a response."""
        assert self._loop is not None

        async def read() -> None:
            while True:
                try:
                    await self.fetch_positions(self.partitions())
                    self.has_read_all = True
                    return
                except Unanswered:
                    await self.pause(50, 200)

        self._loop.spawn(read())

    has_read_all = False


class Alone(Member):
    """A consumer that assigns partitions to itself, and commits offsets with a group id."""

    async def _live(self) -> None:
        self.positions = self.positions or {TopicPartition(TOPICS[0], PartitionIndex(0)): 0}
        await self.commit("", None, -1)
        await self.pause(100, 300)

    async def leave(self) -> None:
        """Do nothing, because the client is no member of a group."""


class Population:
    """All group members of a run, and one observer for each group.

    Each protocol has a group of three members, one of them static. A third group has members of both protocols, and
    changes its protocol as members join and leave.
    """

    def __init__(self, cluster: Cluster, history: GroupHistory, *, has_admin: bool = False) -> None:
        """If `has_admin` is set, an admin tool commits and deletes the offsets of a further group, and deletes the
        group.
        """
        self.cluster = cluster
        self.scheduler = cluster.scheduler
        self.history = history
        self.is_stopped = False
        self.admins: list[GroupAdmin] = []
        self.members: list[ClassicMember | ConsumerMember] = []
        self.observers: list[Observer] = []
        number = FIRST_MEMBER
        history.mixed = frozenset({MIXED})
        kinds_of: dict[GroupId, list[type[ClassicMember] | type[ConsumerMember]]] = {
            CLASSIC: [ClassicMember] * 3,
            CONSUMER: [ConsumerMember] * 3,
            MIXED: [ClassicMember, ConsumerMember] * 2,
        }
        for group, kinds in kinds_of.items():
            for index, kind in enumerate(kinds):
                instance = "static" if index == 0 else None
                self.members.append(kind(cluster, history, number, group, instance_id=instance))
                number += 1
            self.observers.append(Observer(cluster, history, number, group))
            number += 1
        self._actions = (
            self._kill,
            self._kill,
            self._leave,
            self._stall,
            self._stall,
            self._resubscribe,
        )
        if has_admin:
            self.admins.append(GroupAdmin(cluster, history, number, ALONE))
        for member in (*self.members, *self.observers, *self.admins):
            self.scheduler.after(self.scheduler.between(0, 500 * MS), member.start)
        self.scheduler.after(2 * SECOND, self._act)

    @property
    def client_ids(self) -> list[int]:
        return [m.client_id for m in (*self.members, *self.observers, *self.admins)]

    # --- faults of members ------------------------------------------------------------------------

    def _act(self) -> None:
        if self.is_stopped:
            return
        self.scheduler.random.choice(self._actions)(self.scheduler.random.choice(self.members))
        self.scheduler.after(self.scheduler.between(600 * MS, 3 * SECOND), self._act)

    def _kill(self, member: ClassicMember | ConsumerMember) -> None:
        if member.is_up:
            self.scheduler.counters["member deaths"] += 1
            self.scheduler.note(f"member {member.name} dies")
            member.die()
        self._start_later(member)

    def _leave(self, member: ClassicMember | ConsumerMember) -> None:
        self.scheduler.note(f"member {member.name} leaves")
        member.begin_leaving()
        self.scheduler.after(2 * SECOND, member.die)
        self._start_later(member, least_us=2_100 * MS)

    def _start_later(self, member: Member, least_us: int = 100 * MS) -> None:
        longest_us = 1 * SECOND if self.scheduler.chance(0.4) else 7 * SECOND
        self.scheduler.after(least_us + self.scheduler.between(0, longest_us), member.start)

    def _stall(self, member: ClassicMember | ConsumerMember) -> None:
        duration_us = self.scheduler.between(300 * MS, 9 * SECOND)
        if member.is_up and member.process is not None:
            self.scheduler.counters["members stopped"] += 1
            self.scheduler.note(f"member {member.name} stops for {duration_us // MS} ms")
            member.process.stall(duration_us)
            self.cluster.network.process_stalled(member.process, duration_us)

    def _resubscribe(self, member: ClassicMember | ConsumerMember) -> None:
        if isinstance(member, ConsumerMember):
            member.resubscribe()

    # --- end of a run -----------------------------------------------------------------------------

    def heal(self) -> None:
        """Start all members again, subscribed to all topics."""
        self.is_stopped = True
        for member in self.members:
            member.start()
            if isinstance(member, ConsumerMember) and member.topics != TOPICS:
                member.resubscribe()

    def is_settled(self, since_us: int) -> bool:
        """Check P9: each partition has one owner, which has committed an offset since `since_us`."""
        wanted = set(self.observers[0].partitions())
        for group in GROUPS:
            members = [m for m in self.members if m.group_id == group]
            owned = [p for m in members for p in m.owned]
            if not all(m.is_up for m in members) or sorted(map(str, owned)) != sorted(
                map(str, wanted)
            ):
                return False
            if any(m.owned and m.last_commit_us < since_us for m in members):
                return False
        return True

    def stop(self) -> None:
        """Stop all commits. The observers read all offsets once."""
        for member in (*self.members, *self.observers):
            member.is_stopped = True
        for admin in self.admins:
            admin.die()
        for observer in self.observers:
            observer.read_all()

    @property
    def has_read_all(self) -> bool:
        return all(o.has_read_all for o in self.observers)

    def close(self) -> None:
        """Cancel all running tasks."""
        for member in (*self.members, *self.observers, *self.admins):
            member.die()

    def suspended_groups(self) -> list[GroupId]:
        """Return all groups if a partition of `__consumer_offsets` lost more copies than its durability survives,
        otherwise none.
        """
        suspended = self.cluster.invariants.suspended
        topic = self.cluster.log.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return []
        ours = {TopicIdPartition(topic.topic_id, s.partition) for s in topic.partitions}
        return list(GROUPS) if ours & suspended else []
