"""The committed offsets of a consumer group, as one member commits and fetches them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from odradek.cluster.backoff import Backoff
from odradek.cluster.cluster import Cluster
from odradek.cluster.methods import GROUP_COMMIT, GROUP_FETCH
from odradek.cluster.turns import in_turns
from odradek.errors import MemberFenced, error_code, error_of
from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

CALL_S_MAX: Final = 10.0
PATIENCE_S: Final = 30.0
"""How long requests are repeated while the coordinator is moving or loading."""
COORDINATOR_MOVES: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
Offsets = Mapping[TopicPartition, tuple[int, int]]
"""The offset of the next record to read, and the leader epoch of the record before (-1: unknown), per partition."""
R = TypeVar("R")


class Member(Protocol):
    """The member on whose behalf offsets are committed."""

    member_id: str
    member_epoch: int
    is_heard: bool
    """Whether heartbeats are sent; they may bring another epoch, or the removal of the member."""
    times_lost: int
    """How often the group removed this member. What it read before the last removal must not be committed."""

    @property
    def owned(self) -> Mapping[TopicPartition, bytes]:
        """The owned partitions, with the id of their topic."""


class GroupOffsets:
    """The committed offsets of a group, as one member commits and fetches them."""

    def __init__(self, cluster: Cluster, group: str, instance_id: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._instance_id = instance_id
        self._committed: dict[TopicPartition, int] = {}
        # One commit at a time, so that a retry cannot overwrite a later commit.
        self._turn = asyncio.Lock()

    def unknown(self, offsets: Offsets) -> Offsets:
        """Return the offsets that this member has not committed yet."""
        return {n: at for n, at in offsets.items() if self._committed.get(n) != at[0]}

    def keep_only(self, owned: Mapping[TopicPartition, object]) -> None:
        """Forget which offsets were committed for all other partitions, because other members may have committed
        since.
        """
        self._committed = {n: at for n, at in self._committed.items() if n in owned}

    async def commit(self, offsets: Offsets, member: Member) -> None:
        """Commit all of these offsets, after earlier commits.

        Raises:
            MemberFenced: the group removed this member.
            OdradekError: a partition does not exist, the member has no right, or no coordinator responds.
        """
        if offsets:
            async with self._turn:
                await self._commit(offsets, member)

    async def _commit(self, offsets: Offsets, member: Member) -> None:
        request = pb.CommitOffsetsRequest(group_id=self._group, instance_id=self._instance_id)
        async for name, (offset, epoch) in in_turns(offsets.items()):
            # By its id the coordinator refuses the offset if the topic was deleted and created again meanwhile.
            request.offsets.add(
                partition=_named(name),
                offset=offset,
                leader_epoch=epoch,
                topic_id=member.owned.get(name, b""),
            )

        times_lost = member.times_lost

        async def attempt() -> tuple[pb.CommitOffsetsResponse, bool]:
            if member.times_lost != times_lost:
                raise MemberFenced(f"commit of group {self._group!r}: it removed this member")
            request.member_id, request.member_epoch = member.member_id, member.member_epoch
            response = await self._cluster.call_any(GROUP_COMMIT, request, timeout_s=CALL_S_MAX)
            code = error_code(response.error_code)
            is_stale = code is ErrorCode.STALE_MEMBER_EPOCH and member.is_heard
            return response, is_stale or code in COORDINATOR_MOVES

        response = await _patiently(attempt)
        if response.error_code:
            raise error_of(response.error_code, f"commit of group {self._group!r}")
        async for result in in_turns(response.offsets):
            if result.error_code:
                raise error_of(
                    result.error_code,
                    f"commit of {result.partition.topic}-{result.partition.partition}",
                )
        self._committed.update({name: at[0] for name, at in offsets.items()})

    async def committed(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group; None for a partition without one."""
        request = pb.FetchOffsetsRequest(
            group_id=self._group,
            partitions=[_named(name) async for name in in_turns(names)],
            member_epoch=-1,
            require_stable=True,
        )

        async def attempt() -> tuple[pb.FetchOffsetsResponse, bool]:
            response = await self._cluster.call_any(GROUP_FETCH, request, timeout_s=CALL_S_MAX)
            moves = error_code(response.error_code) in COORDINATOR_MOVES
            return response, moves or _is_unstable(response)

        response = await _patiently(attempt)
        # An earlier owner of a partition may have died during a transaction; the transaction's timeout ends the wait.
        while _is_unstable(response):
            response = await _patiently(attempt)
        if response.error_code:
            raise error_of(response.error_code, f"offsets of group {self._group!r}")
        return {
            TopicPartition(result.partition.topic, result.partition.partition): (
                result.offset if result.offset >= 0 else None
            )
            async for result in in_turns(response.offsets)
        }


def _is_unstable(response: pb.FetchOffsetsResponse) -> bool:
    return any(
        error_code(result.error_code) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        for result in response.offsets
    )


async def _patiently(attempt: Callable[[], Awaitable[tuple[R, bool]]]) -> R:
    """Repeat a call while its error is transient, and return the last response."""
    backoff = Backoff(first_ms=50, most_ms=1_000)
    failures, deadline_s = 0, time.monotonic() + PATIENCE_S
    while True:
        response, may_pass = await attempt()
        if not may_pass or time.monotonic() > deadline_s:
            return response
        failures += 1
        await asyncio.sleep(backoff.after(failures, random.random()) / 1000)


def _named(name: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
