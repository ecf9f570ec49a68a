"""Conversations about groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import uuid
from typing import Any

from odradek_protocol.kafka.api_keys import ApiKey
from tests.e2e.kafka.same_answers.conversation import Conversation
from tests.e2e.kafka.same_answers.groups import heartbeat, join, leave, member_of
from tests.e2e.kafka.same_answers.offsets import commit, committed


class Member:
    """A member, which chooses its id itself if the version lets it."""

    def __init__(self, talk: Conversation, group: str, noun: str = "member") -> None:
        self._talk = talk
        self.group = group
        self.chooses = talk.version(ApiKey.CONSUMER_GROUP_HEARTBEAT) >= 1
        self.id = talk.call(str(uuid.uuid4()), noun) if self.chooses else ""
        self.epoch = 0
        self._noun = noun

    def beat(self, label: str, **more: Any) -> Any:
        """Send a heartbeat, with the id and the epoch of the last response."""
        response = self.tell(label, **more)
        if isinstance(response, dict) and response["error_code"] == 0:
            self.id = self._talk.call(response["member_id"], self._noun) or self.id
            self.epoch = response["member_epoch"]
        return response

    def tell(self, label: str, **more: Any) -> Any:
        """Send a heartbeat without updating this member by the response."""
        fields = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
        } | more
        return self._talk.ask(label, ApiKey.CONSUMER_GROUP_HEARTBEAT, **fields)

    def join(self, label: str, topics: list[str], **more: Any) -> Any:
        """Join with a subscription to topics that coordinators know."""
        for topic in topics:
            _wait_for(self._talk, topic)
        fields = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": topics,
            "topic_partitions": [],
        } | more
        return self.beat(label, **fields)


def _wait_for(talk: Conversation, topic: str) -> None:
    """Wait until group coordinators know a topic: until a member of another group is assigned its partitions."""
    key, member = ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group_id": f"probe-{topic}", "member_id": "m"}
    while True:
        response = talk.prepare(
            key,
            1,
            **member,
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        assert response["error_code"] == 0, response
        talk.prepare(key, 1, **member, member_epoch=-1)
        if response["assignment"]["topic_partitions"]:
            return


def heartbeat_checks(talk: Conversation) -> None:
    """Send heartbeats that are refused before the coordinator looks up the group."""
    topic = talk.topic("t", 2)
    member = Member(talk, talk.named("g"))
    topic_id = talk.topic_id(topic)
    member.join("empty group id", [topic], group_id="")
    member.join("no rebalance timeout", [topic], rebalance_timeout_ms=-1)
    member.join("rebalance timeout 0", [topic], rebalance_timeout_ms=0)
    member.join("null topics", [topic], subscribed_topic_names=None)
    member.join("null partitions", [topic], topic_partitions=None)
    owned = [{"topic_id": topic_id, "partitions": [0]}]
    member.join("owns already", [topic], topic_partitions=owned)
    member.join("no member id", [topic], member_id="")
    member.join("empty instance", [topic], instance_id="")
    member.join("empty rack", [topic], rack_id="")
    member.join("empty assignor", [topic], server_assignor="")
    member.join("unknown assignor", [topic], server_assignor="nonsense")
    member.join("bad pattern", [], subscribed_topic_regex="[")
    member.join("blank member id", [topic], member_id="  ")
    for epoch in (-3, -2, -1, 5, (1 << 31) - 1):
        member.tell(f"epoch {epoch} of an unknown group", member_epoch=epoch, member_id="nobody")
    for epoch in (-3, -2, -1, 5):
        member.tell(f"epoch {epoch} without id", member_epoch=epoch, member_id="")
    member.tell("static leave of an unknown group", member_epoch=-2, member_id="m", instance_id="i")


def consumer_group(talk: Conversation) -> None:
    """A member that joins, is assigned partitions, reports wrong epochs and leaves."""
    topic, group = talk.topic("t", 2), talk.named("g")
    topic_id = talk.topic_id(topic)
    member = Member(talk, group)
    member.join("joins", [topic])
    owned = [{"topic_id": topic_id, "partitions": [0, 1]}]
    member.beat("owns", topic_partitions=owned)
    member.beat("nothing changes")
    member.beat(
        "full heartbeat",
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[topic],
        topic_partitions=owned,
    )
    member.beat("fewer topics", subscribed_topic_names=["nowhere", topic])
    member.beat("more topics", subscribed_topic_names=[topic])
    for delta in (1, 100, -1):
        member.tell(f"epoch {delta:+}", member_epoch=member.epoch + delta)
    member.tell(
        "previous epoch and the partitions", member_epoch=member.epoch - 1, topic_partitions=owned
    )
    member.tell(
        "previous epoch and others",
        member_epoch=member.epoch - 1,
        topic_partitions=[{"topic_id": topic_id, "partitions": [7]}],
    )
    member.tell("unknown member", member_id="nobody")
    member.tell("unknown member leaves", member_id="nobody", member_epoch=-1)
    member.beat("unknown assignor", server_assignor="nonsense")
    member.beat("range", server_assignor="range")
    member.beat("unknown topic", subscribed_topic_names=["nowhere"])
    member.beat("gave up", topic_partitions=[])
    member.beat("no topics", subscribed_topic_names=[])
    member.beat("topic again", subscribed_topic_names=[topic])
    if member.chooses:
        member.beat("pattern", subscribed_topic_regex="no.thing")
        member.beat("bad pattern", subscribed_topic_regex="(")
        member.beat("no pattern", subscribed_topic_regex="")
    describe = ApiKey.CONSUMER_GROUP_DESCRIBE
    talk.ask("described", describe, group_ids=[group])
    talk.ask(
        "described with rights", describe, group_ids=[group], include_authorized_operations=True
    )
    commit(talk, "committed", group, topic, {}, generation=member.epoch, member=member.id)
    commit(talk, "wrong epoch", group, topic, {}, generation=member.epoch + 1, member=member.id)
    commit(talk, "old epoch", group, topic, {}, generation=member.epoch - 1, member=member.id)
    commit(talk, "unknown member", group, topic, {}, generation=member.epoch, member="nobody")
    commit(talk, "no member", group, topic, {})
    committed(talk, "fetched", group, topic, 0, member=member.id, epoch=member.epoch)
    committed(
        talk, "fetched at another epoch", group, topic, 0, member=member.id, epoch=member.epoch + 1
    )
    committed(
        talk, "fetched at an old epoch", group, topic, 0, member=member.id, epoch=member.epoch - 1
    )
    committed(talk, "fetched by nobody", group, topic, 0, member="nobody", epoch=1)
    committed(talk, "fetched without member", group, topic, 0)
    joined = join(talk, "classic join", group)
    heartbeat(talk, "classic heartbeat", group, 1, "nobody")
    heartbeat(talk, "classic heartbeat of the member", group, member.epoch, member.id)
    leave(talk, "classic leave", group, ("nobody", None))
    if isinstance(joined, dict) and joined["member_id"]:
        leave(talk, "classic leave of who asked", group, (joined["member_id"], None))
    talk.ask("classic description", ApiKey.DESCRIBE_GROUPS, groups=[group])
    talk.ask("deleted with members", ApiKey.DELETE_GROUPS, groups_names=[group])
    member.tell("leaves", member_epoch=-1)
    member.tell("leaves again", member_epoch=-1)
    member.tell("after leaving")
    talk.ask("described empty", describe, group_ids=[group])
    talk.ask("classic description of empty", ApiKey.DESCRIBE_GROUPS, groups=[group])
    talk.ask("deleted", ApiKey.DELETE_GROUPS, groups_names=[group])


def static_consumers(talk: Conversation) -> None:
    """Static members that leave for a while and for ever."""
    topic, group = talk.topic("t", 2), talk.named("g")
    first = Member(talk, group, "first")
    first.join("first", [topic], instance_id="i")
    second = Member(talk, group, "second")
    second.join("second with the same instance", [topic], instance_id="i")
    second.tell("second beats", instance_id="i", member_epoch=1, member_id="nobody")
    first.tell("wrong instance", instance_id="j")
    first.tell("no instance")
    first.tell("leaves for a while", member_epoch=-2, instance_id="i")
    first.tell("beats after that", instance_id="i")
    talk.ask("described", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group])
    second.join("second comes instead", [topic], instance_id="i")
    first.tell("first is fenced", instance_id="i")
    first.tell("first leaves", member_epoch=-1, instance_id="i")
    second.tell("second leaves", member_epoch=-1, instance_id="i")
    second.tell("unknown instance leaves", member_epoch=-2, instance_id="i")
    dynamic = Member(talk, group, "dynamic")
    dynamic.join("dynamic", [topic])
    dynamic.tell("dynamic leaves for a while", member_epoch=-2)


def two_consumers(talk: Conversation) -> None:
    """A partition moves from one member to another."""
    topic, group = talk.topic("t", 2), talk.named("g")
    topic_id = talk.topic_id(topic)
    first, second = Member(talk, group, "first"), Member(talk, group, "second")
    first.join("first", [topic])
    first.beat("first owns both", topic_partitions=[{"topic_id": topic_id, "partitions": [0, 1]}])
    second.join("second", [topic])
    second.beat("second owns nothing", topic_partitions=[])
    response = first.beat("first is asked to give one up")
    assignment = response.get("assignment") if isinstance(response, dict) else None
    kept = assignment["topic_partitions"] if assignment else []
    first.beat("first gave it up", topic_partitions=kept)
    talk.ask("described", ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=[group])
    second.beat("second gets it")
    first.tell("first leaves", member_epoch=-1)


def other_protocols(talk: Conversation) -> None:
    """Send consumer heartbeats for classic groups, and describe groups that are not consumer groups."""
    topic = talk.topic("t", 2)
    describe = ApiKey.CONSUMER_GROUP_DESCRIBE
    talk.ask("none", describe, group_ids=[])
    talk.ask("empty id", describe, group_ids=[""])
    talk.ask("unknown", describe, group_ids=[talk.named("nowhere")])
    talk.ask("twice", describe, group_ids=[talk.named("nowhere")] * 2)
    talk.ask(
        "unknown with rights", describe, group_ids=["nowhere"], include_authorized_operations=True
    )
    classic = talk.named("classic")
    member_of(talk, classic, protocol_type="connect")
    talk.ask("classic", describe, group_ids=[classic])
    Member(talk, classic).join("joins a group of another type", [topic])
    Member(talk, classic).tell("beats in a classic group", member_id="nobody", member_epoch=3)
    offsets = talk.named("offsets")
    commit(talk, "offsets alone", offsets, topic, {})
    talk.ask("group of offsets alone", describe, group_ids=[offsets])
    Member(talk, offsets, "late").join("joins a group of offsets alone", [topic])
    talk.ask("group with offsets", describe, group_ids=[offsets])


TALKS = (heartbeat_checks, consumer_group, static_consumers, two_consumers, other_protocols)
