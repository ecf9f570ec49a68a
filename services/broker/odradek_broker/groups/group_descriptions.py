"""Groups as administrators see them."""

from __future__ import annotations

from odradek_broker.groups.classic_group import ClassicGroup
from odradek_broker.groups.classic_roster import ClassicState
from odradek_broker.groups.consumer_group import ConsumerGroup
from odradek_broker.groups.messages import GroupDescription, MemberDescription
from odradek_protocol.kafka.error_codes import ErrorCode


def describe_classic(group: ClassicGroup) -> GroupDescription:
    """A classic group; metadata and assignments only once it is stable, as Kafka does."""
    is_stable = group.state is ClassicState.STABLE
    return GroupDescription(
        error=ErrorCode.NONE,
        group_id=group.group_id,
        state=group.state.value,
        group_type="classic",
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if is_stable else "",
        epoch=group.generation,
        assignment_epoch=group.generation,
        members=tuple(
            MemberDescription(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                metadata=m.metadata(group.protocol) if is_stable else b"",
                assignment_bytes=m.assignment if is_stable else b"",
                member_epoch=group.generation,
            )
            for m in group.members.values()
        ),
    )


def describe_consumer(group: ConsumerGroup) -> GroupDescription:
    """A consumer group with each member's present and target assignment."""
    return GroupDescription(
        error=ErrorCode.NONE,
        group_id=group.group_id,
        state=group.state_name,
        group_type="consumer",
        protocol_type="consumer",
        protocol=group.assignor,
        epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rack_id=member.rack_id,
                is_classic=member.classic is not None,
                member_epoch=group.currents[member.member_id].member_epoch,
                subscribed_topics=member.subscribed_topics,
                subscribed_regex=member.subscribed_regex,
                assignment=group.currents[member.member_id].assigned,
                target=group.targets.get(member.member_id, {}),
            )
            for member in group.members.values()
        ),
    )
