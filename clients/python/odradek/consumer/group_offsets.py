"""What a group has committed: how a member writes it, and where it begins."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.errors import MemberFenced, error_code, error_of
from odradek.partitions import TopicPartition
from odradek.transports.methods import GROUP_COMMIT, GROUP_FETCH
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

CALL_S_MAX: Final = 10.0
PATIENCE_S: Final = 30.0
"""How long a coordinator may move or load before that is an error."""
COORDINATOR_MOVES: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
Offsets = Mapping[TopicPartition, tuple[int, int]]
"""Per partition the offset of the next record to read, and the leader epoch of the one before; -1: unknown."""
R = TypeVar("R")


class Member(Protocol):
    """Who commits."""

    member_id: str
    member_epoch: int
    is_heard: bool
    """Heartbeats go on: what they bring may be another epoch, or that the group went on."""
    times_lost: int
    """How often the group went on without it; what it read before is no more its to commit."""


class GroupOffsets:
    """Of one member of the group."""

    def __init__(self, cluster: Cluster, group: str, instance_id: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._instance_id = instance_id
        self._committed: dict[TopicPartition, int] = {}
        self._turn = asyncio.Lock()  # one commit at a time: a repeat must not overtake a later one

    def unknown(self, offsets: Offsets) -> Offsets:
        """Those of them that this member has not committed yet."""
        return {n: at for n, at in offsets.items() if self._committed.get(n) != at[0]}

    def keep_only(self, owned: Mapping[TopicPartition, object]) -> None:
        """Others may commit for what is not owned: what this member committed there may be no more."""
        self._committed = {n: at for n, at in self._committed.items() if n in owned}

    async def commit(self, offsets: Offsets, member: Member) -> None:
        """Write these, all of them, after what was to be committed before.

        Raises:
            MemberFenced: the group went on without this member.
            OdradekError: a partition does not exist, the member may not, or nobody answers.
        """
        if offsets:
            async with self._turn:
                await self._commit(offsets, member)

    async def _commit(self, offsets: Offsets, member: Member) -> None:
        request = pb.CommitOffsetsRequest(group_id=self._group, instance_id=self._instance_id)
        for name, (offset, epoch) in offsets.items():
            request.offsets.add(partition=_named(name), offset=offset, leader_epoch=epoch)

        times_lost = member.times_lost

        async def attempt() -> tuple[pb.CommitOffsetsResponse, bool]:
            if member.times_lost != times_lost:
                raise MemberFenced(f"commit of group {self._group!r}: it went on without us")
            request.member_id, request.member_epoch = member.member_id, member.member_epoch
            told = await self._cluster.call_any(GROUP_COMMIT, request, timeout_s=CALL_S_MAX)
            code = error_code(told.error_code)
            is_stale = code is ErrorCode.STALE_MEMBER_EPOCH and member.is_heard
            return told, is_stale or code in COORDINATOR_MOVES

        told = await _patiently(attempt)
        if told.error_code:
            raise error_of(told.error_code, f"commit of group {self._group!r}")
        for one in told.offsets:
            if one.error_code:
                raise error_of(
                    one.error_code, f"commit of {one.partition.topic}-{one.partition.partition}"
                )
        self._committed.update({name: at[0] for name, at in offsets.items()})

    async def committed(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What the group committed; None where nothing."""
        request = pb.FetchOffsetsRequest(
            group_id=self._group, partitions=[_named(name) for name in names], member_epoch=-1
        )

        async def attempt() -> tuple[pb.FetchOffsetsResponse, bool]:
            told = await self._cluster.call_any(GROUP_FETCH, request, timeout_s=CALL_S_MAX)
            return told, error_code(told.error_code) in COORDINATOR_MOVES

        told = await _patiently(attempt)
        if told.error_code:
            raise error_of(told.error_code, f"offsets of group {self._group!r}")
        return {
            TopicPartition(one.partition.topic, one.partition.partition): (
                one.offset if one.offset >= 0 else None
            )
            for one in told.offsets
        }


async def _patiently(attempt: Callable[[], Awaitable[tuple[R, bool]]]) -> R:
    """The answer of the first attempt whose error will not pass by itself, or of the last one."""
    backoff = Backoff(first_ms=50, most_ms=1_000)
    failures, deadline_s = 0, time.monotonic() + PATIENCE_S
    while True:
        told, may_pass = await attempt()
        if not may_pass or time.monotonic() > deadline_s:
            return told
        failures += 1
        await asyncio.sleep(backoff.after(failures, random.random()) / 1000)


def _named(name: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
