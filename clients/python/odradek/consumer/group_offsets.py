"""Commits and fetches the offsets of a consumer group, for one member."""

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
from odradek.cluster.wait_report import NoteError, reported_call
from odradek.errors import MemberFenced, error_code, error_of
from odradek.partitions import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

CALL_S_MAX: Final = 10.0
PATIENCE_S: Final = 30.0
"""How long requests are retried while the coordinator is changing or loading its state."""
COORDINATOR_MOVES: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
Offsets = Mapping[TopicPartition, tuple[int, int]]
"""By partition: the offset of the next record to read, and the leader epoch of the record before it (-1: unknown)."""
R = TypeVar("R")


class Member(Protocol):
    """The group member that offsets are committed for."""

    member_id: str
    member_epoch: int
    is_active: bool
    """Whether the member sends heartbeats. These may show that its epoch changed, or that the member was removed."""
    removal_count: int
    """How often the group removed this member. Offsets from before the last removal must not be committed."""

    @property
    def owned(self) -> Mapping[TopicPartition, bytes]:
        """The owned partitions, with the ids of their topics."""


class GroupOffsets:
    """The committed offsets of a group, for one member."""

    def __init__(self, cluster: Cluster, group: str, instance_id: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._instance_id = instance_id
        self._committed: dict[TopicPartition, int] = {}
        # Commits run one after another, so that a retry cannot overwrite a later commit.
        self._turn = asyncio.Lock()

    def unknown(self, offsets: Offsets) -> Offsets:
        """Return those offsets that this member has not committed yet."""
        return {n: at for n, at in offsets.items() if self._committed.get(n) != at[0]}

    def keep_only(self, owned: Mapping[TopicPartition, object]) -> None:
        """Delete the recorded commits of all partitions except `owned`, because other members may have committed
        since.
        """
        self._committed = {n: at for n, at in self._committed.items() if n in owned}

    async def commit(self, offsets: Offsets, member: Member) -> None:
        """Commit these offsets, after earlier commits have ended.

        Raises:
            MemberFenced: the group removed this member.
            OdradekError: a partition does not exist, the member is not authorized, or no coordinator responds.
        """
        if offsets:
            async with self._turn:
                await self._commit(offsets, member)

    async def _commit(self, offsets: Offsets, member: Member) -> None:
        request = pb.CommitOffsetsRequest(group_id=self._group, instance_id=self._instance_id)
        async for name, (offset, epoch) in in_turns(offsets.items()):
            # With the topic id, the coordinator refuses the offset if the topic was deleted and created again.
            request.offsets.add(
                partition=_named(name),
                offset=offset,
                leader_epoch=epoch,
                topic_id=member.owned.get(name, b""),
            )

        removal_count = member.removal_count

        async def attempt() -> tuple[pb.CommitOffsetsResponse, ErrorCode | None]:
            if member.removal_count != removal_count:
                raise MemberFenced(f"the group {self._group!r} removed this member before a commit")
            request.member_id, request.member_epoch = member.member_id, member.member_epoch
            response = await self._cluster.call_any(
                GROUP_COMMIT, request, timeout_s=CALL_S_MAX, note_error=note_error
            )
            code = error_code(response.error_code)
            is_stale = code is ErrorCode.STALE_MEMBER_EPOCH and member.is_active
            return response, code if is_stale or code in COORDINATOR_MOVES else None

        what = f"a commit of group {self._group!r}"
        with reported_call(what, self._cluster.explain_waiting) as note_error:
            response = await _patiently(attempt, what, note_error)
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
        """Return the committed offsets of the group. None: the partition has no committed offset."""
        request = pb.FetchOffsetsRequest(
            group_id=self._group,
            partitions=[_named(name) async for name in in_turns(names)],
            member_epoch=-1,
            require_stable=True,
        )

        async def attempt() -> tuple[pb.FetchOffsetsResponse, ErrorCode | None]:
            response = await self._cluster.call_any(
                GROUP_FETCH, request, timeout_s=CALL_S_MAX, note_error=note_error
            )
            code = error_code(response.error_code)
            if code in COORDINATOR_MOVES:
                return response, code
            return response, ErrorCode.UNSTABLE_OFFSET_COMMIT if _is_unstable(response) else None

        what = f"the committed offsets of group {self._group!r}"
        with reported_call(what, self._cluster.explain_waiting) as note_error:
            response = await _patiently(attempt, what, note_error)
            # An earlier owner of a partition may have died during a transaction. The wait ends with the transaction's
            # timeout.
            while _is_unstable(response):
                response = await _patiently(attempt, what, note_error)
        if response.error_code:
            raise error_of(response.error_code, f"offsets of group {self._group!r}")
        return {
            TopicPartition(result.partition.topic, result.partition.partition): (
                result.offset if result.offset >= 0 else None
            )
            async for result in in_turns(response.offsets)
        }


def _is_unstable(response: pb.FetchOffsetsResponse) -> bool:
    return any(result.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT for result in response.offsets)


async def _patiently(
    attempt: Callable[[], Awaitable[tuple[R, ErrorCode | None]]],
    what: str,
    note_error: NoteError,
) -> R:
    """Repeat a call while its error is transient, for at most PATIENCE_S, and return the last response. `attempt`
    returns a response with its transient error code, or with None.
    """
    backoff = Backoff(first_ms=50, most_ms=1_000)
    failures, deadline_s = 0, time.monotonic() + PATIENCE_S
    while True:
        response, transient = await attempt()
        if transient is None or time.monotonic() > deadline_s:
            return response
        note_error(error_of(transient, what))
        failures += 1
        await asyncio.sleep(backoff.after(failures, random.random()) / 1000)


def _named(name: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
