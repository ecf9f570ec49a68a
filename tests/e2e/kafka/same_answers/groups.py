"""Conversations about groups of the classic protocol: requests of members and of administrators."""

from __future__ import annotations

import struct
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation

MEMBER_ID_REQUIRED = 79
_SUBSCRIPTION = struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">ii", -1, 0)
ASSIGNMENT = struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">iii", 1, 0, -1)


def join(
    talk: Conversation,
    label: str,
    group: str,
    member: str = "",
    *,
    protocols: tuple[str, ...] = ("range",),
    **more: Any,
) -> Any:
    """Join a group."""
    items = [{"name": name, "metadata": _SUBSCRIPTION} for name in protocols]
    fields = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": items,
    } | more
    response = talk.ask(label, ApiKey.JOIN_GROUP, group_id=group, member_id=member, **fields)
    if isinstance(response, dict):
        talk.call(response["member_id"], "the member")
    return response


def member_of(talk: Conversation, group: str, **more: Any) -> tuple[str, int]:
    """Create a stable group with one member; return the member's id and generation."""
    noun = group.split("-")[0]
    response = join(talk, f"{noun} joins", group, **more)
    if response["error_code"] == MEMBER_ID_REQUIRED:
        response = join(talk, f"{noun} joins by id", group, response["member_id"], **more)
    member, generation = response["member_id"], response["generation_id"]
    sync(talk, f"{noun} syncs", group, generation, member, assigned={member: ASSIGNMENT})
    return member, generation


def sync(
    talk: Conversation,
    label: str,
    group: str,
    generation: int,
    member: str,
    assigned: dict[str, bytes] | None = None,
    **more: Any,
) -> Any:
    items = [{"member_id": name, "assignment": what} for name, what in (assigned or {}).items()]
    fields = {"protocol_type": "consumer", "protocol_name": "range"} | more
    return talk.ask(
        label,
        ApiKey.SYNC_GROUP,
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=items,
        **fields,
    )


def heartbeat(
    talk: Conversation, label: str, group: str, generation: int, member: str, **more: Any
) -> Any:
    return talk.ask(
        label,
        ApiKey.HEARTBEAT,
        group_id=group,
        generation_id=generation,
        member_id=member,
        **more,
    )


def leave(talk: Conversation, label: str, group: str, *members: tuple[str, str | None]) -> Any:
    items = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
    first = members[0][0] if members else ""
    return talk.ask(label, ApiKey.LEAVE_GROUP, group_id=group, member_id=first, members=items)


def join_group(talk: Conversation) -> None:
    """Join groups by valid and invalid requests."""
    group = talk.named("g")
    join(talk, "empty group id", "")
    for timeout_ms in (-1, 0, 1, 5_999, 1_800_001, (1 << 31) - 1):
        join(talk, f"session {timeout_ms}", talk.named("s"), session_timeout_ms=timeout_ms)
    join(talk, "unknown member", talk.named("u"), "nobody")
    join(talk, "no protocols", talk.named("n"), protocols=())
    join(talk, "no protocol type", talk.named("n"), protocol_type="")
    join(talk, "empty protocol", talk.named("n"), protocols=("",))
    join(talk, "other type", talk.named("other"), protocol_type="connect")
    member, generation = member_of(talk, group)
    join(talk, "other protocol type", group, protocol_type="connect")
    join(talk, "other protocols", group, protocols=("other",))
    join(talk, "unknown member of a group", group, "nobody")
    join(talk, "no protocol for a group", group, protocols=())
    join(talk, "again, same protocols", group, member)
    heartbeat(talk, "after joining again", group, generation, member)


def sync_group(talk: Conversation) -> None:
    """Send invalid and repeated SyncGroup requests."""
    group = talk.named("g")
    sync(talk, "empty group id", "", 1, "m")
    sync(talk, "unknown group", talk.named("nowhere"), 1, "m")
    sync(talk, "no member", talk.named("nowhere"), 1, "")
    member, generation = member_of(talk, group)
    sync(talk, "again", group, generation, member)
    sync(
        talk,
        "again with other assignments",
        group,
        generation,
        member,
        assigned={member: ASSIGNMENT + b"x"},
    )
    sync(talk, "unknown member", group, generation, "nobody")
    sync(talk, "empty member", group, generation, "")
    for wrong in (generation + 1, generation - 1, -1):
        sync(talk, f"generation {wrong}", group, wrong, member)
    sync(talk, "other type", group, generation, member, protocol_type="connect")
    sync(talk, "other protocol", group, generation, member, protocol_name="other")
    sync(talk, "null type", group, generation, member, protocol_type=None)
    sync(talk, "null protocol", group, generation, member, protocol_name=None)
    sync(talk, "unknown instance", group, generation, member, group_instance_id="nobody")


def group_heartbeat(talk: Conversation) -> None:
    """Send heartbeats of members, and of clients that are not members."""
    group = talk.named("g")
    heartbeat(talk, "empty group id", "", 1, "m")
    heartbeat(talk, "unknown group", talk.named("nowhere"), 1, "m")
    member, generation = member_of(talk, group)
    heartbeat(talk, "right", group, generation, member)
    heartbeat(talk, "unknown member", group, generation, "nobody")
    heartbeat(talk, "empty member", group, generation, "")
    for wrong in (generation + 1, generation - 1, -1):
        heartbeat(talk, f"generation {wrong}", group, wrong, member)
    heartbeat(talk, "unknown instance", group, generation, member, group_instance_id="nobody")


def leave_group(talk: Conversation) -> None:
    """Leave groups, once, twice and without having joined."""
    group = talk.named("g")
    leave(talk, "empty group id", "", ("m", None))
    leave(talk, "unknown group", talk.named("nowhere"), ("m", None))
    leave(talk, "nobody", group)
    member, generation = member_of(talk, group)
    leave(talk, "unknown member", group, ("nobody", None))
    leave(talk, "empty member", group, ("", None))
    leave(talk, "nobody of a group", group)
    leave(talk, "unknown instance", group, ("", "nobody"))
    leave(talk, "wrong instance", group, (member, "nobody"))
    leave(talk, "member and another", group, (member, None), ("nobody", None))
    leave(talk, "again", group, (member, None))
    heartbeat(talk, "after leaving", group, generation, member)
    sync(talk, "after leaving", group, generation, member)
    join(talk, "after leaving", group, member)


def static_members(talk: Conversation) -> None:
    """Join, rejoin and leave as static members."""
    key, group = ApiKey.JOIN_GROUP, talk.named("g")
    if talk.version(key) < 5:
        return
    member, generation = member_of(talk, group, group_instance_id="i")
    heartbeat(talk, "static", group, generation, member, group_instance_id="i")
    heartbeat(talk, "static, other member", group, generation, "nobody", group_instance_id="i")
    heartbeat(talk, "static, no member", group, generation, "", group_instance_id="i")
    heartbeat(talk, "static, no instance", group, generation, member)
    sync(talk, "static, other member", group, generation, "nobody", group_instance_id="i")
    join(talk, "static, other member", group, "nobody", group_instance_id="i")
    join(talk, "static, unknown instance and member", group, "nobody", group_instance_id="j")
    for instance in ("", "a b", "x" * 249, "x" * 250, "."):
        join(
            talk,
            f"instance {instance[:3]!r} {len(instance)}",
            talk.named(f"odd{len(instance)}{instance[:1].strip()}"),
            group_instance_id=instance,
            session_timeout_ms=6000,
        )
    again = join(talk, "static again", group, group_instance_id="i")
    heartbeat(talk, "static, as before", group, generation, member, group_instance_id="i")
    heartbeat(
        talk,
        "static, as now",
        group,
        again["generation_id"],
        again["member_id"],
        group_instance_id="i",
    )
    leave(talk, "static, wrong member", group, ("nobody", "i"))
    leave(talk, "static", group, ("", "i"))
    leave(talk, "static twice", group, ("", "i"))


def describe_groups(talk: Conversation) -> None:
    """Describe, list and delete groups in each state."""
    group, empty, dead = talk.named("g"), talk.named("empty"), talk.named("dead")

    def describe(label: str, *groups: str, **more: Any) -> None:
        talk.ask(f"{label}", ApiKey.DESCRIBE_GROUPS, groups=[*groups], **more)

    describe("none")
    describe("empty id", "")
    describe("unknown", dead)
    describe("unknown with rights", dead, include_authorized_operations=True)
    member, _ = member_of(talk, group)
    gone, _ = member_of(talk, empty)
    describe("stable", group)
    describe("with rights", group, include_authorized_operations=True)
    leave(talk, "gone", empty, (gone, None))
    describe("without members", empty)
    describe("several", group, empty, dead)
    describe("twice", group, group)

    def delete(label: str, *groups: str) -> None:
        talk.ask(label, ApiKey.DELETE_GROUPS, groups_names=[*groups])

    delete("none")
    delete("empty id", "")
    delete("unknown", dead)
    delete("with members", group)
    delete("several", group, dead, empty)
    delete("again", empty)
    describe("deleted", empty)
    delete("twice", dead, dead)
    leave(talk, "the last", group, (member, None))
    delete("left", group)


def list_groups(talk: Conversation) -> None:
    """List groups by state and type."""
    key, group = ApiKey.LIST_GROUPS, talk.named("g")
    member_of(talk, group, protocol_type="mine")
    for label, states, types in (
        ("all", [], []),
        ("stable", ["Stable"], []),
        ("lower case", ["stable"], []),
        ("unknown state", ["Nonsense"], []),
        ("empty state", [""], []),
        ("two states", ["Empty", "Stable"], []),
        ("dead", ["Dead"], []),
        ("classic", [], ["classic"]),
        ("upper case type", [], ["Classic"]),
        ("consumer", [], ["consumer"]),
        ("unknown type", [], ["nonsense"]),
        ("share", [], ["share"]),
        ("state and type", ["Stable"], ["classic"]),
    ):
        fields = {"states_filter": states, "types_filter": types}
        response = talk.prepare(key, talk.version(key), **fields)
        if isinstance(response, dict):
            mine = [each for each in response["groups"] if each["group_id"] == group]
            response = response | {"groups": mine}
        talk.record(label, response)


TALKS = (
    join_group,
    sync_group,
    group_heartbeat,
    leave_group,
    static_members,
    describe_groups,
    list_groups,
)
