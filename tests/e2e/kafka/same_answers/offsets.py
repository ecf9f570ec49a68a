"""Conversations about committed offsets: OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

import uuid
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.groups import leave, member_of

_UNKNOWN_ID = uuid.UUID(int=0xABCDEF)
_BATCHED = 8
_BY_ID = {ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10, ApiKey.TXN_OFFSET_COMMIT: 6}


def topic_item(talk: Conversation, topic: str, key: ApiKey) -> dict[str, Any]:
    """Return a topic item of a request, with the topic's name or id, as the request's version requires."""
    by_id = talk.version(key) >= _BY_ID[key]
    if by_id and topic in ("nowhere", "", "a b"):
        return {"name": topic, "topic_id": uuid.UUID(int=0) if topic == "" else _UNKNOWN_ID}
    return {"name": topic, "topic_id": talk.topic_id(topic) if by_id else bytes(16)}


def commit(
    talk: Conversation,
    label: str,
    group: str,
    topic: str,
    *parts: dict[str, Any],
    generation: int = -1,
    member: str = "",
    **more: Any,
) -> Any:
    """Commit offsets. Each partition is a dictionary of the fields that differ from the default."""
    ordinary = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    topics = [
        topic_item(talk, topic, ApiKey.OFFSET_COMMIT)
        | {"partitions": [ordinary | part for part in parts]}
    ]
    return talk.ask(
        label,
        ApiKey.OFFSET_COMMIT,
        **{
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "retention_time_ms": -1,
            "topics": topics,
        }
        | more,
    )


def committed(
    talk: Conversation,
    label: str,
    group: str,
    topic: str | None,
    *indexes: int,
    member: str | None = None,
    epoch: int = -1,
    **more: Any,
) -> Any:
    """Fetch committed offsets of a topic; without a topic, those of all topics."""
    topics = None
    if topic is not None:
        topics = [topic_item(talk, topic, ApiKey.OFFSET_FETCH) | {"partition_indexes": [*indexes]}]
        if talk.version(ApiKey.OFFSET_FETCH) < _BATCHED:
            del topics[0]["topic_id"]
    if topics is None and talk.version(ApiKey.OFFSET_FETCH) < 2:
        return None
    one = {"group_id": group, "topics": topics, "member_id": member, "member_epoch": epoch}
    return talk.ask(label, ApiKey.OFFSET_FETCH, group_id=group, topics=topics, groups=[one], **more)


def offset_commit(talk: Conversation) -> None:
    """Commit with and without members."""
    topic, group = talk.topic("t", 2), talk.named("g")
    commit(talk, "without members", group, topic, {})
    commit(talk, "both partitions", group, topic, {}, {"partition_index": 1})
    commit(talk, "twice", group, topic, {}, {"committed_offset": 6})
    commit(talk, "none", group, topic)
    commit(talk, "no topics", group, topic, topics=[])
    commit(talk, "empty group", "", topic, {})
    commit(talk, "missing partition", group, topic, {"partition_index": 7})
    commit(talk, "negative partition", group, topic, {"partition_index": -1})
    commit(talk, "one wrong", group, topic, {}, {"partition_index": 9})
    commit(talk, "unknown topic", group, "nowhere", {})
    commit(talk, "empty topic", group, "", {})
    for offset in (0, -1, -2, (1 << 63) - 1):
        commit(talk, f"offset {offset}", group, topic, {"committed_offset": offset})
    for epoch in (0, 9, -2):
        commit(talk, f"epoch {epoch}", group, topic, {"committed_leader_epoch": epoch})
    commit(talk, "null metadata", group, topic, {"committed_metadata": None})
    for size in (4096, 4097):
        commit(talk, f"metadata {size}", group, topic, {"committed_metadata": "m" * size})
    commit(
        talk,
        "one metadata too long",
        group,
        topic,
        {},
        {"partition_index": 1, "committed_metadata": "m" * 4097},
    )
    commit(talk, "member of no group", talk.named("nowhere"), topic, {}, member="m")
    commit(talk, "generation of no group", talk.named("nowhere"), topic, {}, generation=3)
    commit(talk, "both of no group", talk.named("nowhere"), topic, {}, generation=3, member="m")
    commit(talk, "member of an empty group", group, topic, {}, member="m")
    commit(talk, "generation of an empty group", group, topic, {}, generation=3)
    commit(talk, "both of an empty group", group, topic, {}, generation=3, member="m")
    commit(talk, "retention", group, topic, {}, retention_time_ms=1)
    member, generation = member_of(talk, group)
    commit(talk, "right", group, topic, {}, generation=generation, member=member)
    commit(talk, "no member in a group", group, topic, {})
    commit(talk, "unknown member", group, topic, {}, generation=generation, member="nobody")
    for wrong in (generation + 1, generation - 1, -1):
        commit(talk, f"generation {wrong}", group, topic, {}, generation=wrong, member=member)
    commit(talk, "no member id", group, topic, {}, generation=generation)
    commit(
        talk,
        "unknown instance",
        group,
        topic,
        {},
        generation=generation,
        member=member,
        group_instance_id="nobody",
    )
    commit(
        talk,
        "unknown member, missing partition",
        group,
        topic,
        {"partition_index": 7},
        generation=generation,
        member="nobody",
    )
    commit(talk, "internal topic", talk.named("internal"), "__consumer_offsets", {})


def offset_fetch(talk: Conversation) -> None:
    """Fetch committed offsets of partitions with and without a commit."""
    topic, group = talk.topic("t", 3), talk.named("g")
    committed(talk, "unknown group", group, topic, 0)
    committed(talk, "unknown group, all", group, None)
    committed(talk, "empty group id", "", topic, 0)
    commit(
        talk,
        "committed",
        group,
        topic,
        {"committed_metadata": "m"},
        {"partition_index": 1, "committed_leader_epoch": 0},
    )
    committed(talk, "one", group, topic, 0)
    committed(talk, "all partitions", group, topic, 0, 1, 2, 9, -1)
    committed(talk, "twice", group, topic, 0, 0)
    committed(talk, "no partitions", group, topic)
    committed(talk, "all", group, None)
    committed(talk, "unknown topic", group, "nowhere", 0)
    committed(talk, "empty topic", group, "", 0)
    committed(talk, "stable", group, topic, 0, require_stable=True)
    one: dict[str, Any] = {"group_id": group, "topics": [], "member_id": None, "member_epoch": -1}
    talk.ask("no topics", ApiKey.OFFSET_FETCH, group_id=group, topics=[], groups=[one])
    if talk.version(ApiKey.OFFSET_FETCH) >= _BATCHED:
        talk.ask("no groups", ApiKey.OFFSET_FETCH, groups=[])
        both = [one | {"topics": None}, one | {"group_id": talk.named("other"), "topics": None}]
        talk.ask("two groups", ApiKey.OFFSET_FETCH, groups=both)
        talk.ask("group twice", ApiKey.OFFSET_FETCH, groups=[one, one])
    committed(talk, "as an unknown member", group, topic, 0, member="nobody", epoch=0)
    committed(talk, "as no member with an epoch", group, topic, 0, member=None, epoch=3)
    committed(talk, "as an empty member", group, topic, 0, member="", epoch=-1)
    member, _ = member_of(talk, group)
    committed(talk, "as a member", group, topic, 0, member=member, epoch=1)
    committed(talk, "as nobody of a group", group, topic, 0, member="nobody", epoch=1)


def offset_delete(talk: Conversation) -> None:
    """Delete offsets of groups with and without members."""
    key, topic, group = ApiKey.OFFSET_DELETE, talk.topic("t", 2), talk.named("g")

    def delete(label: str, group: str, *names: tuple[str, list[int]]) -> None:
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in names
        ]
        talk.ask(label, key, group_id=group, topics=topics)

    delete("unknown group", talk.named("nowhere"), (topic, [0]))
    delete("empty group id", "", (topic, [0]))
    commit(talk, "committed", group, topic, {}, {"partition_index": 1})
    delete("one", group, (topic, [0]))
    delete("again", group, (topic, [0]))
    delete("missing partition", group, (topic, [7, -1]))
    delete("unknown topic", group, ("nowhere", [0]))
    delete("empty topic", group, ("", [0]))
    delete("twice", group, (topic, [1, 1]))
    delete("none", group)
    commit(talk, "committed again", group, topic, {}, {"partition_index": 1})
    member, _ = member_of(talk, group)
    delete("with members", group, (topic, [0]))
    leave(talk, "leaves", group, (member, None))
    delete("left", group, (topic, [0]), ("nowhere", [0]))
    committed(talk, "after that", group, topic, 0, 1)
    subscribed = talk.named("other")
    member_of(talk, subscribed, protocol_type="connect")
    delete("other type with members", subscribed, (topic, [0]))


TALKS = (offset_commit, offset_fetch, offset_delete)
