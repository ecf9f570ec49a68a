"""A member of the classic group protocol, with eager rebalancing. The group leader assigns partitions round robin."""

from __future__ import annotations

import struct
from typing import Final

from odradek_broker.groups import messages as gm
from odradek_broker.groups.formats.consumer_protocol import read_assignment, write_assignment
from odradek_protocol.identity import (
    GroupId,
    MemberId,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.primitives import write_string
from tests.sim.cluster import Cluster
from tests.sim.coordinator_shell import REBALANCE_MS, SESSION_MS
from tests.sim.group_history import GroupHistory
from tests.sim.member import HEARTBEAT_MS, LifeOver, Member, Unanswered

TOPICS: Final = (TopicName("replicated"), TopicName("synced"))
_JOIN_PATIENCE_S: Final = REBALANCE_MS / 1000 + 3
_LOST: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class ClassicMember(Member):
    """A member that joins, syncs, sends heartbeats and commits. It joins again when a response says so."""

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
        self.generation = -1

    def _forget(self) -> None:
        super()._forget()
        self.member_id, self.generation = MemberId(""), -1

    async def _live(self) -> None:
        joined = await self._join()
        if joined is None:
            return
        self.generation = joined.generation
        assignments: dict[MemberId, bytes] = {}
        if joined.members and not joined.skips_assignment:
            assignments = self._assign([m.member_id for m in joined.members])
        asked_us = self.scheduler.now_us
        synced: gm.Synced = await self.ask(
            gm.SyncGroup(
                group_id=self.group_id,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance_id,
                protocol_type="consumer",
                protocol="round robin",
                assignments=assignments,
            ),
            patience_s=_JOIN_PATIENCE_S,
        )
        if synced.error is not ErrorCode.NONE:
            self._judge(synced.error)
            return
        self.owned = _decoded(synced.assignment)
        self.history.generation_synced(
            self.group_id,
            self.generation,
            self.owned,
            by=self.instance_id or self.name,
            is_static=self.instance_id is not None,
            member_id=f"{self.member_id}/{self.memberships}",
            began_us=asked_us,
            ended_us=self.scheduler.now_us,
        )
        await self._work()

    async def _join(self) -> gm.Joined | None:
        if not self.member_id:
            self.history.begins_anew(self.group_id, by=self.instance_id or self.name)
        joined: gm.Joined = await self.ask(
            gm.JoinGroup(
                group_id=self.group_id,
                member_id=self.member_id,
                instance_id=self.instance_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                protocols=(("round robin", SUBSCRIPTION),),
                client_id=str(self.client_id),
                client_host="simulated",
                new_member_id=MemberId(f"{self.name}-{next(self._call_ids)}"),
                requires_known_member=True,
                may_skip_assignment=True,
            ),
            patience_s=_JOIN_PATIENCE_S,
        )
        if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return await self._join()
        if joined.error is not ErrorCode.NONE:
            self._judge(joined.error)
            return None
        self.member_id = joined.member_id
        return joined

    def _assign(self, members: list[MemberId]) -> dict[MemberId, bytes]:
        image = self.cluster.log.image
        partitions = [
            (topic.name, state.partition)
            for name in TOPICS
            if (topic := image.topic(name)) is not None
            for state in topic.partitions
        ]
        members = sorted(members)
        shares: dict[MemberId, dict[TopicName, frozenset[PartitionIndex]]] = {
            m: {} for m in members
        }
        for number, (topic_name, index) in enumerate(partitions):
            share = shares[members[number % len(members)]]
            share[topic_name] = share.get(topic_name, frozenset()) | {index}
        return {m: write_assignment(share, version=1) for m, share in shares.items()}

    async def _work(self) -> None:
        """Send heartbeats and commits until the generation ends."""
        must_fetch = True
        while True:
            try:
                if must_fetch:
                    error = await self.fetch_positions(self.owned)
                    must_fetch = error is not ErrorCode.NONE
                elif self.scheduler.chance(0.5):
                    error = await self._commit()
                else:
                    error = await self._beat()
            except Unanswered:  # keep the generation, because the next coordinator has the same one
                self._disconnect()
                error = ErrorCode.NONE
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                if self.scheduler.chance(0.5) and not must_fetch:
                    await self._commit()  # consumers commit before they revoke partitions
                self.owned, self.positions = frozenset(), {}
                return
            if error is not ErrorCode.NONE:
                self._judge(error)
                self.owned, self.positions = frozenset(), {}
                return
            await self.pause(HEARTBEAT_MS // 2, HEARTBEAT_MS)

    async def _commit(self) -> ErrorCode:
        began_us = self.scheduler.now_us
        error = await self.commit(self.member_id, self.instance_id, self.generation)
        if error is ErrorCode.NONE:
            self._confirm(began_us)
        return error

    async def _beat(self) -> ErrorCode:
        began_us = self.scheduler.now_us
        error: ErrorCode = await self.ask(
            gm.Heartbeat(
                group_id=self.group_id,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance_id,
            )
        )
        if error is ErrorCode.NONE:
            self._confirm(began_us)
        return error

    def _confirm(self, began_us: int) -> None:
        self.history.confirmed(
            self.group_id, self.generation, by=self.instance_id or self.name, at_us=began_us
        )

    def _judge(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            raise LifeOver
        if error in _LOST:
            self.generation = -1
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = MemberId("")

    async def leave(self) -> None:
        if self.member_id:
            await self.ask(
                gm.LeaveGroup(group_id=self.group_id, members=((self.member_id, self.instance_id),))
            )


def _decoded(assignment: bytes) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, index)
        for topic, indexes in read_assignment(assignment).items()
        for index in indexes
    )


def _subscription(topics: tuple[TopicName, ...]) -> bytes:
    """Return the ConsumerProtocolSubscription, version 1, of a member that owns no partitions when it joins."""
    out = bytearray(struct.pack(">hi", 1, len(topics)))
    for topic in topics:
        write_string(out, topic)
    return bytes(out + struct.pack(">ii", -1, 0))  # no user data, no partitions


SUBSCRIPTION: Final = _subscription(TOPICS)
