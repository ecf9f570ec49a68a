"""Runs a group of the classic protocol as a sequence of its members' requests and the responses to
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from odradek_broker.coordinator_step import RequestId, Step
from odradek_broker.groups.formats.record_codec import decode, encode
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.messages import (
    CommitOffsets,
    CommittedOffset,
    FetchOffsets,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Synced,
    SyncGroup,
    TopicCatalog,
)
from odradek_broker.groups.records import GroupRecord
from odradek_broker.groups.settings import GroupSettings
from odradek_protocol.identity import PartitionIndex, TopicId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode

DELAY_MS = 3_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
TOPIC_ID = TopicId(b"t" * 16)
FIRST = TopicPartition(TopicName("t"), PartitionIndex(0))


def catalog(**topics: tuple[TopicId, int]) -> TopicCatalog:
    """Return a catalog of topics, each with its id and number of partitions."""
    named = {TopicName(name): at for name, at in topics.items()}
    return TopicCatalog(version=0, topics=named, matching=lambda _: frozenset())


@dataclass
class Conversation:
    """A group coordinator's shard, a clock, and the response to each request."""

    shard: GroupShard = field(
        default_factory=lambda: GroupShard(
            settings=GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        )
    )
    catalog: TopicCatalog = field(default_factory=lambda: catalog(t=(TOPIC_ID, 1)))
    now_ms: int = 0
    answers: dict[int, Any] = field(default_factory=dict)
    log: list[GroupRecord] = field(default_factory=list)
    requests: int = 0

    def take(self, step: Step[GroupRecord]) -> None:
        self.log += step.records
        for told in step.responses:
            assert told.request_id not in self.answers, "answered twice"
            self.answers[told.request_id] = told.response

    def ask(self) -> RequestId:
        self.requests += 1
        return RequestId(self.requests)

    def join(self, member_id: str = "", **changes: Any) -> RequestId:
        request = JoinGroup(
            group_id="g",
            member_id=member_id,
            instance_id=None,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", b"r"), ("roundrobin", b"rr")),
            client_id="c",
            client_host="h",
            new_member_id=f"member-{self.requests + 1}",
            requires_known_member=False,
            may_skip_assignment=True,
        )
        request_id = self.ask()
        self.take(
            self.shard.handle_join(
                request_id,
                replace(request, **changes),
                self.catalog,
                now_ms=self.now_ms,
                wall_ms=self.now_ms,
            )
        )
        return request_id

    def sync(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        group_id: str = "g",
        **assignments: bytes,
    ) -> RequestId:
        request = SyncGroup(
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            protocol_type=None,
            protocol=None,
            assignments={m.replace("_", "-"): a for m, a in assignments.items()},
        )
        request_id = self.ask()
        self.take(
            self.shard.handle_sync(request_id, request, now_ms=self.now_ms, wall_ms=self.now_ms)
        )
        return request_id

    def heartbeat(self, member_id: str, generation: int, group_id: str = "g") -> ErrorCode:
        beat = Heartbeat(
            group_id=group_id, generation=generation, member_id=member_id, instance_id=None
        )
        request_id = self.ask()
        self.take(self.shard.handle_heartbeat(request_id, beat, self.catalog, now_ms=self.now_ms))
        return self.answers[request_id]

    def leave(self, *members: tuple[str, str | None], group_id: str = "g") -> Any:
        request_id = self.ask()
        leave = LeaveGroup(group_id=group_id, members=members)
        self.take(
            self.shard.handle_leave(request_id, leave, now_ms=self.now_ms, wall_ms=self.now_ms)
        )
        return self.answers[request_id]

    def commit(
        self,
        member_id: str,
        generation: int,
        offset: int = 5,
        partition: TopicPartition = FIRST,
        group_id: str = "g",
    ) -> ErrorCode:
        request_id = self.ask()
        commit = CommitOffsets(
            group_id=group_id,
            member_id=member_id,
            instance_id=None,
            generation_or_epoch=generation,
            offsets={partition: CommittedOffset(offset=offset)},
        )
        self.take(
            self.shard.offsets.handle_commit(
                request_id, commit, self.catalog, now_ms=self.now_ms, wall_ms=self.now_ms
            )
        )
        told = self.answers[request_id]
        return told.error or told.partitions[partition]

    def fetch(self) -> int | None:
        request_id = self.ask()
        self.take(
            self.shard.offsets.handle_fetch_offsets(
                request_id, FetchOffsets(group_id="g", partitions=[FIRST]), now_ms=self.now_ms
            )
        )
        committed = self.answers[request_id].offsets[FIRST]
        return None if committed is None else committed.offset

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.shard.tick(now_ms=self.now_ms, wall_ms=self.now_ms))

    def joined(self, request_id: RequestId) -> Joined:
        return self.answers[request_id]

    def synced(self, request_id: RequestId) -> Synced:
        return self.answers[request_id]

    def stable_pair(self) -> tuple[str, str]:
        """Return a group with a leader and a follower in generation 1."""
        first, second = self.join(), self.join()
        self.wait(DELAY_MS)
        leader, follower = self.joined(first).member_id, self.joined(second).member_id
        synced = self.sync(follower, 1)
        self.sync(leader, 1, **{leader.replace("-", "_"): b"a", follower.replace("-", "_"): b"b"})
        assert self.synced(synced).assignment == b"b"
        return leader, follower

    def moved(self, *, load_ms: int = 0) -> Conversation:
        """Return the same group at another coordinator, which took `load_ms` to load the log."""
        other = Conversation(now_ms=self.now_ms, requests=self.requests)
        for record in self.log:
            decoded = decode(*encode(record))
            assert decoded is not None
            other.shard.table.replay(decoded)
        other.now_ms += load_ms
        other.shard.table.loaded(now_ms=other.now_ms)
        return other
