"""Administration of consumer groups."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from odradek.admin.admin_calls import AdminCalls, check
from odradek.errors import GroupInUse, OdradekError, error_code, error_of
from odradek.partitions import (
    ByPartition,
    PartitionLike,
    TopicPartition,
    as_partition,
    as_partitions,
)
from odradek.transports import methods
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import common_pb2
from odradek_protocol.rpc.v1 import group_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list; `type` is classic or consumer (KIP-848)."""

    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member and what it owns; of classic groups the assignment is not known to the coordinator."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, its members, and the broker that coordinates it."""

    group: str
    state: str
    type: str
    protocol: str
    epoch: int
    coordinator_id: int
    members: tuple[GroupMember, ...]


class GroupAdmin(AdminCalls):
    """The part of `Admin` that is about groups."""

    async def list_groups(self) -> list[GroupListing]:
        """All groups of the cluster, by name."""
        response = await self._call(methods.LIST_GROUPS, pb.ListGroupsRequest())
        check(response.error_code, "listing groups")
        return sorted(
            (
                GroupListing(
                    group=one.group_id,
                    state=one.state,
                    type=one.group_type,
                    protocol_type=one.protocol_type,
                )
                for one in response.groups
            ),
            key=lambda one: one.group,
        )

    async def describe_group(self, group: str) -> GroupDescription:
        """One group. Raises when there is none of that name."""
        request = pb.DescribeGroupsRequest(group_ids=[group])
        response = await self._call(methods.DESCRIBE_GROUPS, request)
        (one,) = response.groups
        check(one.error_code, f"group {group!r}")
        return GroupDescription(
            group=group,
            state=one.state,
            type=one.group_type,
            protocol=one.protocol,
            epoch=one.epoch,
            coordinator_id=one.coordinator_id,
            members=tuple(
                GroupMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id if member.HasField("instance_id") else None,
                    client_id=member.client_id,
                    host=member.client_host,
                    epoch=member.member_epoch,
                    assignment=tuple(
                        TopicPartition(topic.topic, index)
                        for topic in member.assignment
                        for index in topic.partitions
                    ),
                )
                for member in one.members
            ),
        )

    async def group_offsets(
        self, group: str, partitions: Iterable[PartitionLike] = ()
    ) -> dict[TopicPartition, int]:
        """What a group committed: for these, or for all it has."""
        names = as_partitions(partitions)
        request = pb.FetchOffsetsRequest(
            group_id=group, partitions=[_named(name) for name in names], member_epoch=-1
        )
        response = await self._call(methods.GROUP_FETCH, request)
        check(response.error_code, f"offsets of group {group!r}")
        return {
            TopicPartition(one.partition.topic, one.partition.partition): one.offset
            for one in response.offsets
            if one.offset >= 0
        }

    async def alter_group_offsets(self, group: str, offsets: ByPartition[int]) -> None:
        """Let a group without members go on there.

        Raises:
            GroupInUse: the group has members; stop them first.
        """
        request = pb.CommitOffsetsRequest(group_id=group, member_epoch=-1)
        for name, offset in offsets.items():
            request.offsets.add(
                partition=_named(as_partition(name)), offset=offset, leader_epoch=-1
            )
        response = await self._call(methods.GROUP_COMMIT, request)
        if error_code(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID:
            raise _group_error(ErrorCode.NON_EMPTY_GROUP, group)
        check(response.error_code, f"group {group!r}")
        for one in response.offsets:
            check(one.error_code, f"{one.partition.topic}-{one.partition.partition}")

    async def delete_groups(self, groups: Sequence[str]) -> dict[str, OdradekError | None]:
        """Delete groups without members, with all that they committed; each for itself."""
        outcomes: dict[str, OdradekError | None] = {}
        for group in groups:
            response = await self._call(
                methods.DELETE_GROUPS, pb.DeleteGroupsRequest(group_ids=[group])
            )
            for one in response.groups:
                outcomes[group] = _group_error(one.error_code, group) if one.error_code else None
        return outcomes

    async def delete_group_offsets(self, group: str, partitions: Iterable[PartitionLike]) -> None:
        """Forget offsets, of topics that no member is subscribed to."""
        request = pb.DeleteOffsetsRequest(
            group_id=group, partitions=[_named(name) for name in as_partitions(partitions)]
        )
        response = await self._call(methods.DELETE_OFFSETS, request)
        check(response.error_code, f"group {group!r}")
        for one in response.offsets:
            check(one.error_code, f"{one.partition.topic}-{one.partition.partition}")


def _group_error(code: int, group: str) -> OdradekError:
    if code != ErrorCode.NON_EMPTY_GROUP:
        return error_of(code, f"group {group!r}")
    return GroupInUse(
        f"group {group!r} has members",
        code=ErrorCode.NON_EMPTY_GROUP,
        hint=f"stop them first; `odradek group describe {shlex.quote(group)}` lists them",
    )


def _named(name: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=name.topic, partition=name.partition)
