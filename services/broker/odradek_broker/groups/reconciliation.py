"""Reconciliation: how a member of a consumer group moves from its current to its target assignment (KIP-848), and
operations on assignments.

A member in the state UNREVOKED keeps its old epoch until it no longer owns the partitions that it has to revoke. A
member in the state UNRELEASED has the new epoch and owns the partitions of its target that no other member owns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final

from msgspec.structs import replace

from odradek_broker.groups.messages import Assignment
from odradek_broker.groups.records import CurrentAssignment
from odradek_protocol.identity import PartitionIndex, TopicId

NOTHING_OWNED: Final[Assignment] = {}
IsFree = Callable[[TopicId, PartitionIndex], bool]


class MemberState(IntEnum):
    """The state of a member. The states have the same numbers as in Kafka's records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


def reconciled(
    current: CurrentAssignment,
    *,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: IsFree,
) -> CurrentAssignment:
    """Return the next current assignment of a member.

    `owned` are the partitions that the member reports as owned, or None if it did not report any. `is_free` returns
    whether no other member owns the given partition or still has to revoke it.
    """
    if current.state == MemberState.UNREVOKED:
        if owned is None or intersects(owned, current.pending_revocation):
            return current
        current = replace(current, pending_revocation=NOTHING_OWNED)
    elif (
        current.state == MemberState.STABLE
        and current.member_epoch == target_epoch
        and current.assigned == target
    ):
        return current
    to_revoke = minus(current.assigned, target)
    kept = minus(current.assigned, to_revoke)
    if to_revoke and owned is not None and not intersects(owned, to_revoke):
        # The member has never owned these partitions, or has already revoked them.
        to_revoke = NOTHING_OWNED
    if to_revoke:
        return replace(
            current, state=MemberState.UNREVOKED, assigned=kept, pending_revocation=to_revoke
        )
    assigned = plus(kept, free_of(minus(target, kept), is_free))
    return CurrentAssignment(
        member_epoch=target_epoch,
        previous_epoch=current.member_epoch,
        state=MemberState.UNRELEASED if assigned != target else MemberState.STABLE,
        assigned=assigned,
        pending_revocation=NOTHING_OWNED,
    )


def free_of(wanted: Assignment, is_free: IsFree) -> Assignment:
    """Return the partitions in `wanted` for which `is_free` is true."""
    free = {t: frozenset(i for i in indexes if is_free(t, i)) for t, indexes in wanted.items()}
    return {t: indexes for t, indexes in free.items() if indexes}


def pairs(current: CurrentAssignment) -> Iterator[tuple[TopicId, PartitionIndex]]:
    """Yield each partition that the member owns, including those that it still has to revoke."""
    for part in (current.assigned, current.pending_revocation):
        for topic, indexes in part.items():
            for index in indexes:
                yield topic, index


def minus(left: Assignment, right: Assignment) -> Assignment:
    """Return the partitions in `left` that are not in `right`."""
    rest = {t: indexes - right.get(t, frozenset()) for t, indexes in left.items()}
    return {t: indexes for t, indexes in rest.items() if indexes}


def plus(left: Assignment, right: Assignment) -> Assignment:
    """Return the union of two assignments."""
    union: dict[TopicId, frozenset[PartitionIndex]] = dict(left)
    for topic, indexes in right.items():
        union[topic] = union.get(topic, frozenset()) | indexes
    return union


def intersects(left: Assignment, right: Assignment) -> bool:
    """Return whether the assignments have a partition in common."""
    return any(indexes & right.get(topic, frozenset()) for topic, indexes in left.items())


def contains(whole: Assignment, part: Mapping[TopicId, frozenset[PartitionIndex]]) -> bool:
    """Return whether all partitions in `part` are in `whole`."""
    return all(indexes <= whole.get(topic, frozenset()) for topic, indexes in part.items())
