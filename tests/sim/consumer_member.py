"""A member of the consumer group protocol (KIP-848). It only sends heartbeats, and the coordinator assigns the
partitions.
"""

from __future__ import annotations

from odradek_broker.groups import messages as gm
from odradek_protocol.identity import (
    GroupId,
    MemberId,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.sim.classic_member import TOPICS
from tests.sim.cluster import Cluster
from tests.sim.coordinator_shell import REBALANCE_MS
from tests.sim.group_history import GroupHistory
from tests.sim.member import HEARTBEAT_MS, Member, Unanswered

_NOT_THERE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class ConsumerMember(Member):
    """A member that reports the partitions that it owns, starts to own assigned partitions, and revokes the others."""

    def __init__(
        self,
        cluster: Cluster,
        history: GroupHistory,
        client_id: int,
        group_id: GroupId,
        *,
        instance_id: str | None = None,
    ) -> None:
        super().__init__(cluster, history, client_id, group_id)
        self.instance_id = instance_id
        self.member_id = MemberId("")
        self.epoch = 0
        self.topics: tuple[TopicName, ...] = TOPICS
        # Whether the next heartbeat must have all fields: the last one may not have arrived, or a field has changed.
        self._tells_all = True
        self._is_leaving = False

    def _forget(self) -> None:
        super()._forget()
        self.member_id, self.epoch = MemberId(f"member-{self.name}"), 0
        self._tells_all = True
        self._is_leaving = False

    def resubscribe(self) -> None:
        """Subscribe to one topic only, or to all topics again."""
        self.topics = TOPICS[:1] if self.topics == TOPICS else TOPICS
        self._tells_all = True

    async def _live(self) -> None:
        while True:
            try:
                if not self._is_leaving:
                    await self._turn()
            except Unanswered:
                self._disconnect()
                self._tells_all = True
            await self.pause(HEARTBEAT_MS // 2, HEARTBEAT_MS)

    async def _turn(self) -> None:
        unknown = self.owned - self.positions.keys()
        if unknown and self.epoch > 0:
            error = await self.fetch_positions(unknown, member_id=self.member_id, epoch=self.epoch)
            if error is not ErrorCode.NONE:
                await self._beat()
        elif self.epoch > 0 and self.scheduler.chance(0.5):
            error = await self.commit(self.member_id, self.instance_id, self.epoch)
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self._lose_all()
        else:
            await self._beat()

    async def _beat(self) -> None:
        began_us = self.scheduler.now_us
        joins, tells_all, claimed = self.epoch == 0, self._tells_all or self.epoch == 0, self.owned
        topics = self.topics
        if joins:
            self.history.begins_anew(self.group_id, by=self.instance_id or self.name)
        response: gm.ConsumerHeartbeatAnswer = await self.ask(
            gm.ConsumerHeartbeat(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS if tells_all else -1,
                subscribed_topics=topics if tells_all else None,
                owned={} if joins else self._assignment() if tells_all else None,
                client_id=str(self.client_id),
                client_host="simulated",
            )
        )
        if response.error in _NOT_THERE:
            self._lose_all()
            return
        # UNRELEASED_INSTANCE_ID: the membership of the previous process has not ended yet.
        if response.error is not ErrorCode.NONE:
            return
        if self.epoch == 0 and not joins:
            return
        self._tells_all = topics != self.topics
        self.epoch = response.member_epoch
        if response.assignment is not None:
            given = self._named(response.assignment)
            if self.owned - given:
                self._tells_all = True  # report that the partitions were revoked
            self.owned = given
            self.positions = {p: o for p, o in self.positions.items() if p in given}
            if given != claimed:
                self._tells_all = True
        self.history.epoch_told(
            self.group_id,
            self.epoch,
            self.owned,
            kept=claimed & self.owned,
            by=self.instance_id or self.name,
            member_id=f"{self.member_id}/{self.memberships}",
            began_us=began_us,
            ended_us=self.scheduler.now_us,
        )

    def _lose_all(self) -> None:
        self.memberships += 1
        self.owned, self.positions = frozenset(), {}
        self.epoch = 0
        self._tells_all = True

    def _assignment(self) -> gm.Assignment:
        image = self.cluster.log.image
        found: dict[object, set[int]] = {}
        for partition in self.owned:
            topic = image.topic(partition.topic)
            assert topic is not None
            found.setdefault(topic.topic_id, set()).add(partition.partition)
        return {t: frozenset(i) for t, i in found.items()}  # type: ignore[misc, arg-type]

    def _named(self, assignment: gm.Assignment) -> frozenset[TopicPartition]:
        topics = self.cluster.log.image.topics
        return frozenset(
            TopicPartition(topics[topic_id].name, index)
            for topic_id, indexes in assignment.items()
            for index in indexes
        )

    async def leave(self) -> None:
        self._is_leaving = True
        if self.epoch > 0:
            self.epoch, epoch = 0, -2 if self.instance_id is not None else -1
            await self.ask(
                gm.ConsumerHeartbeat(
                    group_id=self.group_id,
                    member_id=self.member_id,
                    member_epoch=epoch,
                    instance_id=self.instance_id,
                )
            )
