"""Group members that behave as client libraries do: eager and cooperative ones of the classic
protocol, and KIP-848 ones.

Each client keeps the partitions that it believes to own; `act` takes the next step that its library
would take. `Members` checks that no two live clients own the same partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from odradek_broker.coordinator_step import RequestId, Step
from odradek_broker.groups.assignors import assign_uniform
from odradek_broker.groups.formats.consumer_protocol import read_assignment, read_subscription
from odradek_broker.groups.formats.record_codec import decode, encode
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.messages import (
    CommitOffsets,
    CommittedOffset,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
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
from odradek_protocol.identity import TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.primitives import write_array_count, write_bytes, write_string

TOPICS = {"a": (b"a" * 16, 6), "b": (b"b" * 16, 3)}
NAMES = {topic_id: name for name, (topic_id, _) in TOPICS.items()}
CATALOG = TopicCatalog(version=1, topics=TOPICS, matching=lambda _: frozenset())
SESSION_MS = 45_000
Partition = tuple[str, int]
Style = Literal["eager", "cooperative"]
ALL = {(name, index) for name, (_, count) in TOPICS.items() for index in range(count)}


def subscription(owned: set[Partition], generation: int) -> bytes:
    """Encode a ConsumerProtocolSubscription of version 2."""
    out = bytearray((2).to_bytes(2))
    write_array_count(out, len(TOPICS))
    for name in TOPICS:
        write_string(out, name)
    write_bytes(out, None)
    write_partitions(out, owned)
    out += generation.to_bytes(4, signed=True)
    return bytes(out)


def assignment(partitions: set[Partition]) -> bytes:
    """Encode a ConsumerProtocolAssignment of version 2."""
    out = bytearray((2).to_bytes(2))
    write_partitions(out, partitions)
    write_bytes(out, None)
    return bytes(out)


def write_partitions(out: bytearray, partitions: set[Partition]) -> None:
    topics = sorted({name for name, _ in partitions})
    write_array_count(out, len(topics))
    for name in topics:
        write_string(out, name)
        indexes = sorted(i for t, i in partitions if t == name)
        write_array_count(out, len(indexes))
        for index in indexes:
            out += index.to_bytes(4)


@dataclass
class Coordinator:
    """A group coordinator's shard, its log, and the responses that it sent."""

    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(initial_rebalance_delay_ms=0)
    )
    now_ms: int = 0
    batches: list[Step[GroupRecord]] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    requests: int = 0
    lives: int = 0  # how often it has died
    is_dying: bool = False  # what it decides now is never written, nor told

    def __post_init__(self) -> None:
        self.shard = GroupShard(settings=self.settings)

    def request(self) -> RequestId:
        self.requests += 1
        return RequestId(self.requests)

    def take(self, step: Step[GroupRecord]) -> None:
        if self.is_dying:
            return
        if step.records:
            self.batches.append(step)
        for told in step.responses:
            assert told.request_id not in self.answers, "answered twice"
            self.answers[told.request_id] = told.response

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.shard.tick(now_ms=self.now_ms, wall_ms=self.now_ms))

    def die(self) -> None:
        """Let another coordinator load the log."""
        self.is_dying = False
        self.shard = GroupShard(settings=self.settings)
        for batch in self.batches:
            for record in batch.records:
                decoded = decode(*encode(record))
                assert decoded == record
                self.shard.table.replay(decoded)
        self.shard.table.loaded(now_ms=self.now_ms)
        self.lives += 1

    @property
    def state(self) -> str:
        return self.shard.table.describe("g").state

    @property
    def kind(self) -> str:
        return self.shard.table.describe("g").group_type

    def commit(self, member_id: str, epoch: int) -> ErrorCode:
        request_id = self.request()
        commit = CommitOffsets(
            group_id="g",
            member_id=member_id,
            instance_id=None,
            generation_or_epoch=epoch,
            offsets={TopicPartition("a", 0): CommittedOffset(offset=1)},
        )
        self.take(
            self.shard.offsets.handle_commit(
                request_id, commit, CATALOG, now_ms=self.now_ms, wall_ms=self.now_ms
            )
        )
        told = self.answers[request_id]
        return told.error or told.partitions[TopicPartition("a", 0)]


@dataclass
class ConsumerClient:
    """A member that sends ConsumerGroupHeartbeat."""

    name: str
    coordinator: Coordinator
    instance_id: str | None = None
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    says_all: bool = True
    errors: list[ErrorCode] = field(default_factory=list)

    def act(self, *, loses_answer: bool = False) -> None:
        joins = self.epoch == 0
        told = self._send(
            ConsumerHeartbeat(
                group_id="g",
                member_id=self.name,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                rebalance_timeout_ms=60_000 if joins or self.says_all else -1,
                subscribed_topics=tuple(TOPICS) if joins or self.says_all else None,
                owned={} if joins else by_id(self.owned),
            )
        )
        self.says_all = loses_answer or told is None
        if loses_answer or told is None:
            return
        if told.error is ErrorCode.NONE:
            self.epoch = told.member_epoch
            if told.assignment is not None:
                self.owned = {(NAMES[t], i) for t, ii in told.assignment.items() for i in ii}
            return
        self.errors.append(told.error)
        self.epoch, self.owned = 0, set()

    def _send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer | None:
        request_id = self.coordinator.request()
        now_ms = self.coordinator.now_ms
        self.coordinator.take(
            self.coordinator.shard.handle_consumer_heartbeat(
                request_id, beat, CATALOG, now_ms=now_ms, wall_ms=now_ms
            )
        )
        told = self.coordinator.answers.get(request_id)
        assert told is None or isinstance(told, ConsumerHeartbeatAnswer)
        return told

    def leave(self) -> None:
        self.owned = set()
        if self.epoch > 0:
            epoch = -1 if self.instance_id is None else -2
            self._send(
                ConsumerHeartbeat(
                    group_id="g",
                    member_id=self.name,
                    member_epoch=epoch,
                    instance_id=self.instance_id,
                )
            )

    def commit(self) -> ErrorCode:
        return self.coordinator.commit(self.name, self.epoch)


def by_id(owned: set[Partition]) -> dict[bytes, frozenset[int]]:
    return {
        topic_id: frozenset(i for t, i in owned if t == name)
        for name, (topic_id, _) in TOPICS.items()
        if any(t == name for t, _ in owned)
    }


@dataclass
class ClassicClient:
    """A member that sends JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

    name: str
    coordinator: Coordinator
    style: Style
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: set[Partition] = field(default_factory=set)
    phase: str = "join"
    errors: list[ErrorCode] = field(default_factory=list)
    rebalances: int = 0
    _waits_for: RequestId | None = None
    _life: int = 0
    _joined: Joined | None = None

    def act(self, *, loses_answer: bool = False) -> None:
        if self._waits_for is not None:
            self._read(loses_answer=loses_answer)
        elif self.phase == "join":
            self._join()
        elif self.phase == "sync":
            self._sync()
        else:
            self._beat()
        if self._waits_for is not None:
            self._read(loses_answer=loses_answer)

    def _join(self) -> None:
        if self.style == "eager":
            self.owned = set()
        metadata = subscription(self.owned, self.generation)
        join = JoinGroup(
            group_id="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=((self.style, metadata),),
            client_id=self.name,
            client_host="h",
            new_member_id=f"{self.name}-{self.coordinator.requests}",
            requires_known_member=self.instance_id is None,
            may_skip_assignment=True,
        )
        self._ask(
            lambda request_id, now_ms: self.coordinator.shard.handle_join(
                request_id, join, CATALOG, now_ms=now_ms, wall_ms=now_ms
            )
        )

    def _sync(self) -> None:
        assert self._joined is not None
        sync = SyncGroup(
            group_id="g",
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocol_type="consumer",
            protocol=self._joined.protocol,
            assignments=self._lead(self._joined) if self._leads else {},
        )
        self._ask(
            lambda request_id, now_ms: self.coordinator.shard.handle_sync(
                request_id, sync, now_ms=now_ms, wall_ms=now_ms
            )
        )

    @property
    def _leads(self) -> bool:
        return self._joined is not None and self._joined.leader == self.member_id

    def _lead(self, joined: Joined) -> dict[str, bytes]:
        """Assign partitions as the cooperative-sticky assignor does: no member gets a partition that another one still
        owns.
        """
        said = {m.member_id: read_subscription(m.metadata).owned for m in joined.members}
        owned = {m: {(t, i) for t, ii in o.items() for i in ii} for m, o in said.items()}
        counts = dict(TOPICS.values())
        targets = assign_uniform(
            {m: frozenset(counts) for m in owned}, counts, {m: by_id(o) for m, o in owned.items()}
        )
        given = {}
        for member, target in targets.items():
            mine = {(NAMES[t], i) for t, ii in target.items() for i in ii}
            others = set().union(*(o for m, o in owned.items() if m != member))
            given[member] = assignment(mine - (others - owned[member]))
        return given

    def _beat(self) -> None:
        beat = Heartbeat(
            group_id="g",
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
        )
        self._ask(
            lambda request_id, now_ms: self.coordinator.shard.handle_heartbeat(
                request_id, beat, CATALOG, now_ms=now_ms
            )
        )

    def _ask(self, decide: Any) -> None:
        request_id = self.coordinator.request()
        self._waits_for, self._life = request_id, self.coordinator.lives
        self.coordinator.take(decide(request_id, self.coordinator.now_ms))

    def _read(self, *, loses_answer: bool) -> None:
        assert self._waits_for is not None
        told = self.coordinator.answers.get(self._waits_for)
        if told is None and self._life == self.coordinator.lives and not loses_answer:
            return  # the rebalance is not complete
        self._waits_for = None
        if told is None or loses_answer:
            if self.phase == "sync":
                self.phase = "join"  # libraries join again when a sync failed
            return
        match told:
            case Joined(error=ErrorCode.NONE):
                self.member_id, self.generation = told.member_id, told.generation
                self._joined, self.phase = told, "sync"
                self.rebalances += 1
            case Joined(error=ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = told.member_id
            case Synced(error=ErrorCode.NONE):
                self._take_up(told)
            case Joined(error=error) | Synced(error=error):
                self._fail(error)
            case ErrorCode.NONE:
                pass
            case ErrorCode() as error:
                self._fail(error)

    def _take_up(self, told: Synced) -> None:
        fresh = {(t, i) for t, ii in read_assignment(told.assignment).items() for i in ii}
        gave_up = self.owned - fresh
        self.owned = fresh
        self.phase = "join" if gave_up and self.style == "cooperative" else "stable"

    def _fail(self, error: ErrorCode) -> None:
        self.errors.append(error)
        self.phase = "join"
        if error is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.owned, self.generation = set(), -1
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def leave(self) -> None:
        self.owned = set()
        if self.member_id:
            leave = LeaveGroup(group_id="g", members=((self.member_id, None),))
            request_id, now_ms = self.coordinator.request(), self.coordinator.now_ms
            self.coordinator.take(
                self.coordinator.shard.handle_leave(
                    request_id, leave, now_ms=now_ms, wall_ms=now_ms
                )
            )

    def commit(self) -> ErrorCode:
        return self.coordinator.commit(self.member_id, self.generation)


Client = ClassicClient | ConsumerClient


@dataclass
class Members:
    """The live clients of one group."""

    coordinator: Coordinator = field(default_factory=Coordinator)
    living: dict[str, Client] = field(default_factory=dict)

    def classic(self, name: str, style: Style, instance_id: str | None = None) -> ClassicClient:
        client = ClassicClient(name, self.coordinator, style, instance_id)
        self.living[name] = client
        return client

    def consumer(self, name: str, instance_id: str | None = None) -> ConsumerClient:
        client = ConsumerClient(f"{name}-{self.coordinator.requests}", self.coordinator)
        client.instance_id = instance_id
        self.living[name] = client
        return client

    def check(self) -> None:
        """Assert that no partition is owned twice."""
        owners: dict[Partition, str] = {}
        for name, client in self.living.items():
            for partition in client.owned:
                other = owners.setdefault(partition, name)
                assert other == name, f"{partition} is owned by {name} and {other}"

    def act(self, name: str, *, loses_answer: bool = False, coordinator_dies: bool = False) -> None:
        """Let a client take its next step.

        If `coordinator_dies` is set, the coordinator dies during that request, before anything of
        it is written.
        """
        self.coordinator.is_dying = coordinator_dies
        self.living[name].act(loses_answer=loses_answer)
        if coordinator_dies:
            self.coordinator.die()
        self.check()

    def settle(self, rounds: int | None = None) -> None:
        """Let all clients act in turn until no client has anything to do."""
        for _ in range(rounds or 8 * len(self.living) + 16):
            for name in list(self.living):
                self.act(name)
            self.coordinator.tick(50)
            self.check()

    def owned(self) -> set[Partition]:
        return set().union(*(client.owned for client in self.living.values()))
