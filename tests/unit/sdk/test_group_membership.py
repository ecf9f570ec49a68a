"""One member of a group, against a coordinator whose responses the test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import pytest

from odradek import TopicPartition
from odradek.cluster.backoff import Backoff
from odradek.cluster.metadata_cache import MetadataCache, Partition, Topic
from odradek.cluster.transport import Method
from odradek.cluster.wait_report import NoteError
from odradek.consumer.group_membership import GroupMembership
from odradek.consumer.options import GroupOptions
from odradek.errors import AuthorizationFailed, MemberFenced, OdradekError
from odradek.partitions import EARLIEST
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb
from tests.unit.sdk.numbered_records import until

T0 = TopicPartition("t", 0)
ID_1, ID_2 = b"1" * 16, b"2" * 16


class Coordinator:
    """Stands in for the connection to the cluster: it responds to the calls of one member."""

    def __init__(self) -> None:
        self.epoch = 1
        self.assignment: dict[bytes, str] = {ID_1: "t"}
        self.committed: dict[TopicPartition, int] = {}
        self.heartbeats: list[pb.GroupHeartbeatRequest] = []
        self.heartbeat_code = ErrorCode.NONE
        self.commit_codes: list[ErrorCode] = []
        self.is_silent = False
        self.topic_error: OdradekError | None = None
        self.cache = MetadataCache()
        self.create_topic(ID_1)

    def create_topic(self, topic_id: bytes) -> None:
        self.cache.topics["t"] = Topic(
            name="t",
            topic_id=topic_id,
            is_internal=False,
            partitions=[Partition(partition=0)],
            metadata_offset=0,
        )

    def start(self) -> None:
        """Start the member as the consumer does."""

    async def topic(self, name: str, *, timeout_s: float) -> Topic:
        if self.topic_error is not None:
            raise self.topic_error
        return self.cache.topics[name]

    async def fetch_topics(self, names: Iterable[str], *, timeout_s: float) -> None:
        """Do nothing, because the metadata is there."""

    def refresh_soon(self) -> None:
        """Do nothing, because the metadata is always current."""

    def explain_waiting(self, error: OdradekError | None) -> str:
        return str(error)

    async def call_any(
        self, method: Method[Any, Any], request: Any, *, timeout_s: float, note_error: NoteError
    ) -> Any:
        await asyncio.sleep(0)
        answer = getattr(self, f"_{method.name}")
        return await answer(request)

    async def _GroupHeartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        self.heartbeats.append(request)
        if self.is_silent and request.member_epoch >= 0:
            await asyncio.Event().wait()
        answer = pb.GroupHeartbeatResponse(
            error_code=self.heartbeat_code,
            member_epoch=self.epoch,
            heartbeat_interval_ms=50,
            has_assignment=True,
        )
        for topic_id, topic in self.assignment.items():
            answer.assignment.add(topic_id=topic_id, topic=topic, partitions=[0])
        return answer

    async def _CommitOffsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        code = self.commit_codes.pop(0) if self.commit_codes else ErrorCode.NONE
        if code is ErrorCode.NONE and request.member_epoch != self.epoch:
            code = ErrorCode.STALE_MEMBER_EPOCH
        if code is ErrorCode.NONE:
            for one in request.offsets:
                name = TopicPartition(one.partition.topic, one.partition.partition)
                self.committed[name] = one.offset
        return pb.CommitOffsetsResponse(error_code=code)

    async def _FetchOffsets(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        answer = pb.FetchOffsetsResponse()
        for one in request.partitions:
            name = TopicPartition(one.topic, one.partition)
            answer.offsets.add(partition=one, offset=self.committed.get(name, -1))
        return answer


class Shelf:
    """Stands in for the consumer's reader."""

    def __init__(self) -> None:
        self.owned: list[TopicPartition] = []
        self.starts: list[Mapping[TopicPartition, int]] = []
        self.offsets: dict[TopicPartition, tuple[int, int]] = {}
        self.errors: list[OdradekError] = []

    def take_over(
        self, owned: Sequence[TopicPartition], starts: Mapping[TopicPartition, int]
    ) -> None:
        self.owned = list(owned)
        self.starts.append(dict(starts))
        self.offsets = {n: at for n, at in self.offsets.items() if n in owned}

    def release(self, names: Sequence[TopicPartition]) -> None:
        """Do nothing, because no records are kept here."""

    def suspend(self, names: Sequence[TopicPartition]) -> None:
        """Do nothing, because no records are handed out here."""

    def returned_offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        return dict(self.offsets)

    def fail(self, error: OdradekError) -> None:
        self.errors.append(error)


class Bench:
    """A test bench: a member, its coordinator, and its reader."""

    def __init__(self, **options: Any) -> None:
        self.coordinator = Coordinator()
        self.shelf = Shelf()
        self.lost: list[TopicPartition] = []
        given = GroupOptions(group="g", **{"on_lost": self.lost.extend, **options})
        link: Any = self.coordinator
        self.member = GroupMembership(link, given, frozenset({"t"}), self.shelf)

    async def join(self) -> None:
        self.member.start()
        await until(lambda: self.shelf.owned == [T0])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Yield a test bench whose member commits automatically every 10 ms."""
    bench = Bench(auto_commit_interval_ms=10)
    yield bench
    await bench.member.close()


async def test_what_the_program_committed_itself_is_not_taken_back_by_the_next_automatic_commit(
    bench: Bench,
) -> None:
    await bench.join()
    bench.shelf.offsets[T0] = (100, 0)
    bench.member.read_begins()
    await until(lambda: bench.coordinator.committed.get(T0) == 100)
    bench.shelf.offsets[T0] = (200, 0)  # handed out, processed, and no other read has begun
    await bench.member.commit()
    assert bench.coordinator.committed[T0] == 200
    asked = len(bench.coordinator.heartbeats)
    await until(lambda: len(bench.coordinator.heartbeats) > asked + 1)
    assert bench.coordinator.committed[T0] == 200


async def test_a_commit_that_is_repeated_does_not_overtake_a_later_one(bench: Bench) -> None:
    await bench.join()
    bench.coordinator.commit_codes = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    first = asyncio.create_task(bench.member.commit({T0: 100}))
    await until(lambda: not bench.coordinator.commit_codes)
    await bench.member.commit({T0: 200})
    await first
    assert bench.coordinator.committed[T0] == 200


async def test_a_commit_that_outruns_the_news_of_a_new_epoch_waits_for_it(bench: Bench) -> None:
    await bench.join()
    bench.coordinator.epoch = 2  # as told by an answer that is still on its way
    await bench.member.commit({T0: 5})
    assert bench.coordinator.committed[T0] == 5


async def test_a_topic_made_anew_is_given_up_and_taken_up_without_the_old_ones_offsets(
    bench: Bench,
) -> None:
    await bench.join()
    bench.shelf.offsets[T0] = (100, 0)
    bench.coordinator.create_topic(ID_2)
    bench.coordinator.assignment = {ID_2: "t"}
    bench.coordinator.epoch = 2
    taken = len(bench.shelf.starts)
    await until(lambda: len(bench.shelf.starts) >= taken + 2)
    assert bench.member.owned == {T0: ID_2}
    assert bench.shelf.starts[-1] == {T0: EARLIEST}
    assert bench.coordinator.committed == {}
    asked = len(bench.coordinator.heartbeats)
    await until(lambda: len(bench.coordinator.heartbeats) > asked)
    assert bench.coordinator.heartbeats[-1].owned[0].topic_id == ID_2


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED]
)
async def test_a_member_that_is_refused_for_good_reads_nothing_of_the_group_any_more(
    bench: Bench, code: ErrorCode
) -> None:
    await bench.join()
    bench.coordinator.heartbeat_code = code
    await until(lambda: bench.shelf.errors)
    assert bench.shelf.owned == []
    assert bench.lost == [T0]
    assert bench.member.refusal is bench.shelf.errors[0]
    with pytest.raises(type(bench.shelf.errors[0])):
        await bench.member.commit({T0: 1})


async def test_a_topic_that_the_member_may_not_see_is_an_error_of_its_reads(bench: Bench) -> None:
    bench.coordinator.topic_error = AuthorizationFailed("topic 't'")
    bench.member.start()
    await until(lambda: bench.shelf.errors)
    bench.coordinator.topic_error = None
    await until(lambda: bench.shelf.owned == [T0])


async def test_a_member_that_closes_before_it_was_let_in_leaves_nevertheless() -> None:
    """The coordinator may have accepted it, and its partitions would be idle until its session ends."""
    bench = Bench()
    bench.coordinator.is_silent = True
    bench.member.start()
    await until(lambda: bench.coordinator.heartbeats)
    await bench.member.close()
    assert [one.member_epoch for one in bench.coordinator.heartbeats] == [0, -1]
    assert len({one.member_id for one in bench.coordinator.heartbeats}) == 1


async def closed_by(listener: str) -> tuple[Bench, asyncio.Task[None]]:
    """Return the test bench of a member that this listener closes, and the task in which the listener was called."""
    callers: list[Any] = []

    async def close(_: Sequence[TopicPartition]) -> None:
        callers.append(asyncio.current_task())
        await bench.member.close()

    bench = Bench(**{listener: close})
    bench.member.start()
    if listener != "on_assign":
        await until(lambda: bench.shelf.owned == [T0])
    if listener == "on_revoke":
        bench.coordinator.assignment = {}
    if listener == "on_lost":
        bench.coordinator.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    await until(lambda: callers and callers[0].done())
    return bench, callers[0]


@pytest.mark.parametrize("listener", ["on_assign", "on_revoke"])
async def test_a_member_that_a_listener_closes_leaves_its_group(listener: str) -> None:
    bench, _ = await closed_by(listener)
    assert bench.coordinator.heartbeats[-1].member_epoch == -1


async def test_a_lost_member_that_on_lost_closes_does_not_join_again() -> None:
    bench, caller = await closed_by("on_lost")
    assert bench.coordinator.heartbeats[-1].member_epoch == 1
    assert caller.cancelled()


async def test_a_join_that_is_refused_for_seconds_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Backoff, "after", lambda *_: 0)
    bench = Bench(instance_id="i")
    bench.coordinator.heartbeat_code = ErrorCode.UNRELEASED_INSTANCE_ID
    bench.member.start()
    await until(lambda: len(bench.coordinator.heartbeats) > 100)
    await bench.member.close()
    warnings = [record.getMessage() for record in caplog.records]
    assert 1 < len(warnings) < 10
    assert "unreleased instance id" in warnings[0]


async def test_a_member_that_the_group_forgot_cannot_commit_what_it_read_before(
    bench: Bench,
) -> None:
    await bench.join()
    bench.coordinator.commit_codes = [ErrorCode.UNKNOWN_MEMBER_ID]
    with pytest.raises(MemberFenced):
        await bench.member.commit({T0: 5})
