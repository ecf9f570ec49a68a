"""Explains why a group does not read, as chains of causes like those in causes.py.

A group that has read all records may still have a problem: its members may wait for partitions that another member
owns, or have no partitions at all. The description of a group has the partitions of its members, but not the topics to
which the members subscribe. So a topic that does not exist cannot be named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from odradek.admin.causes import Cause, Look, coordinator_cause, joined, partition_causes
from odradek.admin.descriptions import GroupDescription, GroupMember
from odradek.partitions import TopicPartition
from odradek_protocol.topic_names import OFFSETS_TOPIC

MEMBERS_MAX: Final = 3
"""The most members that the text of a cause names. Further members are only counted."""
_REBALANCING: Final = frozenset(
    {"preparingrebalance", "completingrebalance", "assigning", "reconciling"}
)
_CONSUMER_TYPE: Final = "consumer"
"""The type of groups (KIP-848) in which the coordinator knows the partitions of each member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """The offsets of a partition and of a group that reads the partition. The offsets are looked up twice, some seconds
    apart.

    Fields that end in `_before` are from the first time. None means that the offset is not known.
    """

    start: int | None
    end: int | None
    end_before: int | None
    stable_end: int | None
    """The last stable offset, where consumers with read_committed stop."""
    committed: int | None
    committed_before: int | None
    open_transaction: str = ""
    """A description of the producer of the oldest open transaction; empty if it is not known."""

    @property
    def lag(self) -> int:
        """The number of records that the group has not committed; 0 if it is not known."""
        if self.committed is None or self.end is None:
            return 0
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """The state of a group at the time of one examination."""

    group: str
    description: GroupDescription | None = None
    error: str = ""
    """Why no coordinator described the group; empty if one described it."""
    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)
    seconds: float = 0.0
    """The time between the two look-ups of the group's offsets."""


def group_causes(look: Look, group: GroupLook) -> list[Cause]:
    """Return why a group is behind, why its members may not read, or why its coordinator does not respond; empty if
    none of these is the case.
    """
    if group.description is None:
        return [coordinator_cause(look, f"group {group.group}", OFFSETS_TOPIC, group.error)]
    behind = {name: p for name, p in sorted(group.partitions.items()) if p.lag or p.end is None}
    if not behind:
        return _assignment_causes(group.description)
    reasons: dict[Cause, list[TopicPartition]] = {}
    for name, progress in behind.items():
        reasons.setdefault(_why_behind(look, group, name, progress), []).append(name)
    return [
        Cause(
            what=f"group {group.group} is {sum(p.lag for p in behind.values()):,} records behind",
            evidence=f"committed and end offsets of {len(behind)} partitions ({joined(list(behind))});"
            f" its state is {group.description.state}",
            because=tuple(
                Cause(
                    what=f"{joined(names)}: {cause.what}",
                    evidence=cause.evidence,
                    remedy=cause.remedy,
                    because=cause.because,
                )
                for cause, names in reasons.items()
            ),
        )
    ]


def _why_behind(
    look: Look, group: GroupLook, name: TopicPartition, progress: PartitionProgress
) -> Cause:
    """Return the first cause that keeps a group from reading a partition to its end."""
    description = group.description
    assert description is not None
    if progress.end is None:
        evidence = f"committed {progress.committed}"
        if name not in look.partitions:
            return Cause(
                what="the partition does not exist, or you are not authorized to describe its topic",
                evidence=evidence,
                remedy="if the topic was deleted, subscribe to another one; otherwise ask an administrator for an ACL"
                " that allows describe",
            )
        stopped = tuple(partition_causes(look, [name], is_stopped=True))
        reason = ", because no leader responds" if stopped else ""
        return Cause(
            what=f"its end offset is not known{reason}", evidence=evidence, because=stopped
        )
    state = description.state
    if not description.members:
        return Cause(
            what="no consumer reads: the group has no members",
            evidence=f"its state is {state}",
            remedy=f"start the consumers with group.id={description.group}; their logs say why they ended",
        )
    if state.lower() in _REBALANCING:
        return _rebalance(description)
    owner = next((m for m in description.members if name in m.assignment), None)
    knows_owners = any(member.assignment for member in description.members)
    if owner is None and knows_owners:
        return Cause(
            what="no member is assigned this partition",
            evidence=f"{len(description.members)} members have other partitions",
            remedy="no member subscribes to this topic: subscribe again, or delete the committed"
            " offsets (`odradek group offset-delete`)",
        )
    committed = progress.committed or 0
    if progress.start is not None and committed < progress.start:
        return Cause(
            what="records were deleted before they were read",
            evidence=f"the committed offset is {committed}, but the earliest is {progress.start}",
            remedy="raise retention.ms, because the group is slower than retention; the consumer continues where"
            " its auto.offset.reset says",
        )
    if (
        progress.stable_end is not None
        and progress.end is not None
        and committed >= progress.stable_end < progress.end
    ):
        return Cause(
            what="an open transaction keeps read_committed consumers from reading on",
            evidence=f"the transaction began at offset {progress.stable_end}, and the end offset is {progress.end}"
            + (f"; {progress.open_transaction}" if progress.open_transaction else ""),
            remedy="end the transaction in its producer, or wait for its timeout; `odradek why TRANSACTIONAL_ID`"
            " explains the transaction",
        )
    member = "the member"
    if owner is not None:
        member = (
            f"member {owner.instance_id or owner.member_id} ({owner.client_id} on {owner.host})"
        )
    elif len(description.members) == 1:
        (only,) = description.members
        member = f"member {only.instance_id or only.member_id} ({only.client_id} on {only.host})"
    read = committed - (
        progress.committed_before if progress.committed_before is not None else committed
    )
    written = 0
    if progress.end is not None and progress.end_before is not None:
        written = progress.end - progress.end_before
    return _why_slow(group, member, read, written)


def _why_slow(group: GroupLook, member: str, read: int, written: int) -> Cause:
    seconds = group.seconds
    evidence = f"in {seconds:.1f} s, it committed {read:,} records, and producers wrote {written:,}"
    if read <= 0:
        return Cause(
            what=f"{member} commits nothing",
            evidence=evidence,
            remedy="read its log and a stack dump: it hangs in its processing, is paused, or commits rarely",
        )
    if read <= written:
        return Cause(
            what=f"{member} reads more slowly than records are written",
            evidence=evidence,
            remedy="make its processing faster, or add members, up to one for each partition",
        )
    return Cause(
        what=f"{member} is catching up",
        evidence=evidence,
        remedy="wait: it reads faster than records are written",
    )


def _assignment_causes(description: GroupDescription) -> list[Cause]:
    """Return why the members of a group that is not behind may not read: a rebalance, or no partitions."""
    if not description.members:
        return []
    if description.state.lower() in _REBALANCING:
        rebalance = _rebalance(description)
        return [
            Cause(
                what=f"group {description.group} is rebalancing, so its members may not read",
                evidence=rebalance.evidence,
                remedy=rebalance.remedy,
            )
        ]
    is_known = description.type.lower() == _CONSUMER_TYPE
    if is_known and not any(member.assignment for member in description.members):
        return [
            Cause(
                what=f"no member of group {description.group} has a partition",
                evidence=f"its state is {description.state}, with {_named(description.members)}",
                remedy="check that the topics exist (`odradek topic list`): the members may subscribe to misspelt"
                " names, which the description of a group does not have",
            )
        ]
    return []


def _rebalance(description: GroupDescription) -> Cause:
    """Return a Cause which says that a group is rebalancing, which members own partitions, and which own none."""
    if description.type.lower() == _CONSUMER_TYPE:
        remedy = (
            "wait: each member must give up the partitions that are now assigned to others; a member that was killed is"
            " removed, and loses its partitions, after the group's session timeout (45 s unless `odradek group config"
            f" {description.group} --set consumer.session.timeout.ms=...` changed it)"
        )
    else:
        remedy = "wait: the rebalance ends when every member has responded, or was removed after its session timeout"
    return Cause(
        what="the group is rebalancing, so its members may not read",
        evidence=evidence_of(description),
        remedy=remedy,
    )


def evidence_of(description: GroupDescription) -> str:
    """Return the state of a group, which members own partitions, and which own none, as a text. The members'
    partitions are known only if the group is not classic.
    """
    members = description.members
    evidence = f"its state is {description.state}, with {len(members)} member{'s' if len(members) != 1 else ''}"
    if description.type.lower() != _CONSUMER_TYPE:
        return evidence
    owners = [member for member in members if member.assignment]
    waiting = [member for member in members if not member.assignment]
    for owner in owners[:MEMBERS_MAX]:
        evidence += f"; {_named([owner])} owns {joined(owner.assignment)}"
    if len(owners) > MEMBERS_MAX:
        evidence += f"; {len(owners) - MEMBERS_MAX} more members own partitions"
    if waiting:
        evidence += f"; {_named(waiting)} {'has' if len(waiting) == 1 else 'have'} no partitions"
    return evidence


def _named(members: Sequence[GroupMember]) -> str:
    """Return the members with their clients and hosts, as a text."""
    texts = [f"{m.instance_id or m.member_id} ({m.client_id} on {m.host})" for m in members]
    more = f" and {len(texts) - MEMBERS_MAX} more" if len(texts) > MEMBERS_MAX else ""
    return f"member{'s' if len(texts) > 1 else ''} {', '.join(texts[:MEMBERS_MAX])}{more}"
