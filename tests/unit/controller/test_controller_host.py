"""The controller's host responds after the commit, in order, or reports that it is not the active
controller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek_metadata_quorum.controller import Controller, ControllerSettings, Decision, topics
from odradek_metadata_quorum.controller.requests import CreateTopicsRequest, NewTopic, TopicResult
from odradek_metadata_quorum.errors import (
    LeadershipUnconfirmed,
    NotLeader,
    OutcomeUnknown,
    QuorumOverloaded,
)
from odradek_metadata_quorum.rpc import controller_host, wire_admin
from odradek_metadata_quorum.rpc.controller_host import (
    ControllerHost,
    NotActive,
    Overloaded,
    Unconfirmed,
)
from odradek_metadata_quorum.rpc.metadata_state_machine import MetadataStateMachine
from odradek_metadata_quorum.rpc.own_registration import OwnRegistration
from odradek_metadata_quorum.settings import QuorumSettings
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.codec import encode_batch
from odradek_protocol.metadata.features import METADATA_VERSION_MAX as LEVEL
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.metadata.records import FeatureLevel, MetadataBatch, NewerProgramNeeded, NoOp
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.cluster_identity import ClusterIdentity
from tests.unit.controller.cluster import CLUSTER_ID, Cluster


class Log:
    """A Raft log that commits on request."""

    def __init__(self) -> None:
        self.appended: list[tuple[bytes, int, asyncio.Future[int]]] = []
        self.committed = 0
        self.refusal: Exception | None = None
        self.machine: MetadataStateMachine | None = None
        self.offset = 0
        self.moved = asyncio.Event()
        self.bytes_max = 1 << 30
        self.confirmations: asyncio.Queue[Exception | None] | None = None

    async def confirm_leadership(self, *, epoch: int, timeout_s: float) -> None:
        if self.confirmations is not None:
            error = await self.confirmations.get()
            if error is not None:
                raise error

    async def propose(self, payload: bytes, *, epoch: int, timeout_s: float) -> int:
        if self.refusal is not None:
            raise self.refusal
        pending = self.appended[self.committed :]
        if sum(len(one) for one, _, _ in pending) + len(payload) > self.bytes_max:
            raise QuorumOverloaded("full")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.appended.append((payload, epoch, future))
        self.moved.set()
        return await future

    async def until(self, count: int) -> None:
        """Wait until this many entries were appended."""
        while len(self.appended) < count:
            self.moved.clear()
            await self.moved.wait()

    async def commit(self, count: int = 1) -> None:
        """Commit the next entries as soon as they are appended."""
        for _ in range(count):
            await self.until(self.committed + 1)
            payload, epoch, future = self.appended[self.committed]
            self.committed += 1
            self.offset += 1
            assert self.machine is not None
            self.machine.apply(self.offset, epoch, payload)
            future.set_result(self.offset)
        await asyncio.sleep(0)

    def fail(self) -> None:
        for _, _, future in self.appended[self.committed :]:
            if not future.done():
                future.set_exception(OutcomeUnknown("deposed"))


class Setup:
    def __init__(self) -> None:
        settings = ControllerSettings(cluster_id=CLUSTER_ID)
        self.controller = Controller(settings, random.Random(1))
        self.failures: list[Exception] = []
        self.host = ControllerHost(self.controller, lambda: 0, self.failures.append)
        self.log = Log()
        self.log.machine = MetadataStateMachine(self.controller, self.host.on_applied)
        self.host.connect(self.log)

    async def open(self, epoch: int = 1) -> None:
        self.host.on_active(epoch)
        await self.log.commit()
        assert self.controller.is_active


@asynccontextmanager
async def running() -> AsyncIterator[Setup]:
    setup = Setup()
    task = asyncio.create_task(setup.host.run())
    await asyncio.sleep(0)
    try:
        yield setup
    finally:
        setup.log.fail()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def prepare_broker(setup: Setup) -> None:
    """Register a broker at the controller, by the log of another controller."""
    source = Cluster()
    source.start(1)
    for _, epoch, records in source.log:
        payload = encode_batch(MetadataBatch(controller_epoch=epoch, records=records), level=LEVEL)
        setup.log.offset += 1
        assert setup.log.machine is not None
        setup.log.machine.apply(setup.log.offset, epoch, payload)


async def create(setup: Setup, name: str, *, partitions: int = -1) -> TopicResult:
    request = CreateTopicsRequest(topics=(NewTopic(name=name, partition_count=partitions),))
    (result,) = (await setup.host.decide(topics.create_topics, request)).response
    return result


async def test_an_answer_comes_after_the_commit_and_not_before() -> None:
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        asked = asyncio.create_task(create(setup, "a"))
        await setup.log.until(2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        await setup.log.commit()
        assert (await asked).outcome.is_good


async def test_a_refusal_that_rests_on_an_uncommitted_decision_waits_for_it() -> None:
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        first = asyncio.create_task(create(setup, "a"))
        await asyncio.sleep(0)
        second = asyncio.create_task(create(setup, "a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done(), "the name may yet be free"
        await setup.log.commit()
        assert (await first).outcome.is_good
        assert (await second).outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_decision_names_the_offset_at_which_its_response_is_true() -> None:
    """A request that is repeated because its response was lost changes nothing, and its response
    names the same log entry.
    """
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        request = CreateTopicsRequest(topics=(NewTopic(name="a"),))
        first = asyncio.create_task(setup.host.decide(topics.create_topics, request))
        again = asyncio.create_task(setup.host.decide(topics.create_topics, request))
        await setup.log.commit()
        assert (await again).response[0].outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
        assert (await first).offset == (await again).offset == setup.log.offset


def requests_for(*names: str) -> list[CreateTopicsRequest]:
    return [CreateTopicsRequest(topics=(NewTopic(name=name),)) for name in names]


async def test_a_large_request_is_decided_in_pieces_with_turns_between_them() -> None:
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        pieces = requests_for("a", "b", "c")
        deciding = asyncio.create_task(setup.host.decide_each(topics.create_topics, pieces))
        await asyncio.sleep(0)
        between = asyncio.create_task(create(setup, "between"))
        await setup.log.commit(3)
        assert not deciding.done(), "its last piece is not committed"
        await setup.log.commit()
        decisions = await deciding
        assert all(result.outcome.is_good for d in decisions for result in d.response)
        offsets = [decision.offset for decision in decisions]
        assert len(set(offsets)) == 3
        assert offsets[0] < offsets[-1] - 2, "another decision came between the pieces"
        assert (await between).outcome.is_good


async def test_a_controller_that_is_deposed_between_pieces_claims_no_success() -> None:
    """This also holds if it is elected again at once, because the pieces of the earlier epoch may
    be lost.
    """
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)

        def pieces() -> Iterator[CreateTopicsRequest]:
            yield from requests_for("a")
            setup.host.on_resigned(2)
            setup.log.fail()
            setup.log.committed = len(setup.log.appended)
            setup.host.on_active(3)
            yield from requests_for("b")

        deciding = asyncio.create_task(setup.host.decide_each(topics.create_topics, pieces()))
        await setup.log.until(2)
        await setup.log.commit()
        with pytest.raises(NotActive, match="between two batches"):
            await deciding


def test_the_pieces_of_a_request_are_refused_as_the_whole_would_be() -> None:
    message = pb.CreateTopicsRequest(
        topics=[
            *(pb.NewTopic(name=f"t{number}", partition_count=60) for number in range(3)),
            pb.NewTopic(name="t0", partition_count=-1),
        ]
    )
    counts = [wire_admin.partition_count(topic, default=1) for topic in message.topics]
    pieces = list(wire_admin.create_topics_pieces(message, counts, frozenset({"t0"})))
    assert [[topic.name for topic in piece.topics] for piece in pieces] == [
        ["t0"],
        ["t1"],
        ["t2", "t0"],
    ]
    assert [piece.partitions_elsewhere for piece in pieces] == [121, 121, 120]
    found = Cluster(ControllerSettings(cluster_id=CLUSTER_ID, partitions_per_request_max=180))
    found.start(1)
    for piece in pieces:
        assert {result.outcome.error for result in found.decide(topics.create_topics, piece)} == {
            ErrorCode.POLICY_VIOLATION
        }
    found = Cluster()
    found.start(1)
    refused = [found.decide(topics.create_topics, piece)[-1].outcome.error for piece in pieces]
    assert refused == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_answers_without_records_wait_for_a_majority() -> None:
    """Reads and refusals wait until a majority confirms the leader; a change waits only for its own
    commit.
    """
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        confirmations = setup.log.confirmations = asyncio.Queue[Exception | None]()
        created = asyncio.create_task(create(setup, "a"))
        await setup.log.commit()
        assert (await created).outcome.is_good

        def image() -> asyncio.Task[Decision[MetadataImage]]:
            return asyncio.create_task(setup.host.decide(lambda work: work.committed))

        asked: list[asyncio.Task[Any]] = [image(), asyncio.create_task(create(setup, "a"))]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        confirmations.put_nowait(None)
        confirmations.put_nowait(None)
        assert (await asked[0]).response.topic("a") is not None
        assert (await asked[1]).outcome.error is ErrorCode.TOPIC_ALREADY_EXISTS
        confirmations.put_nowait(NotLeader("deposed", leader_id=3))
        with pytest.raises(NotActive, match="deposed"):
            await image()
        confirmations.put_nowait(LeadershipUnconfirmed("nobody answered: ask again"))
        with pytest.raises(Unconfirmed, match="ask again"):
            await image()


async def test_a_controller_whose_leadership_nobody_confirms_registers_again_later() -> None:
    """Its registration has not changed, so it writes nothing, and waits for a majority instead."""
    async with running() as setup:
        await setup.open()
        confirmations = setup.log.confirmations = asyncio.Queue[Exception | None]()
        registration = OwnRegistration(
            node_id=1,
            host_id="",
            peers={},
            listeners=list,
            host=setup.host,
            quorum=SimpleNamespace(leader_id=1),  # type: ignore[arg-type]
            identity=ClusterIdentity,
            tls=None,
        )
        confirmations.put_nowait(LeadershipUnconfirmed("nobody answered: ask again"))
        assert not await registration._register()
        confirmations.put_nowait(None)
        assert await registration._register()


async def test_a_deposed_controller_answers_nobody_with_success() -> None:
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        asked = [asyncio.create_task(create(setup, name)) for name in ("a", "b", "a")]
        await setup.log.until(3)
        setup.log.fail()
        setup.host.on_resigned(2)
        for task in asked:
            with pytest.raises(NotActive):
                await task
        with pytest.raises(NotActive):
            await create(setup, "c")
        assert not setup.failures


async def test_requests_wait_for_a_controller_that_is_opening() -> None:
    async with running() as setup:
        prepare_broker(setup)
        setup.host.on_active(2)
        asked = asyncio.create_task(create(setup, "a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        await setup.log.commit(2)
        assert (await asked).outcome.is_good


async def test_a_standby_refuses_at_once() -> None:
    async with running() as setup:
        with pytest.raises(NotActive):
            await create(setup, "a")


@pytest.mark.parametrize(
    "refusal",
    [QuorumOverloaded("full"), NotLeader("elsewhere", leader_id=2)],
    ids=["overloaded", "not leader"],
)
async def test_a_hole_in_the_log_of_an_active_controller_ends_the_process(
    refusal: Exception,
) -> None:
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        setup.log.refusal = refusal
        with pytest.raises(NotActive):
            await create(setup, "a")
        assert setup.failures == [refusal]


async def test_too_much_in_flight_is_refused_before_it_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_host, "IN_FLIGHT_MAX", 2)
    async with running() as setup:
        prepare_broker(setup)
        await setup.open(2)
        asked = [asyncio.create_task(create(setup, name)) for name in ("a", "b")]
        await setup.log.until(3)
        with pytest.raises(Overloaded):
            await create(setup, "c")
        await setup.log.commit(2)
        assert all([(await task).outcome.is_good for task in asked])
        later = asyncio.create_task(create(setup, "c"))
        await setup.log.commit()
        assert (await later).outcome.is_good


async def test_large_decisions_in_flight_never_overload_the_quorum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process would end if the quorum refused a proposal of the active controller, so the host
    must bound what it proposes.
    """
    monkeypatch.setattr(controller_host, "IN_FLIGHT_BYTES_MAX", 1_000, raising=False)
    async with running() as setup:
        prepare_broker(setup)
        setup.log.bytes_max = 3_000
        await setup.open(2)
        asked = [asyncio.create_task(create(setup, f"{n}", partitions=15)) for n in range(9)]
        await setup.log.until(3)
        finished, waiting = await asyncio.wait(asked, timeout=0.05)
        assert setup.failures == []
        assert finished
        assert all(isinstance(task.exception(), Overloaded) for task in finished)
        await setup.log.commit(len(waiting))
        assert all([(await task).outcome.is_good for task in waiting])
        later = asyncio.create_task(create(setup, "later"))
        await setup.log.commit()
        assert (await later).outcome.is_good


def test_the_quorum_takes_all_that_the_host_lets_into_flight() -> None:
    largest = ControllerSettings(cluster_id="c").batch_bytes_max
    quorum = QuorumSettings(node_id=0, cluster_id="c", voters={0: ("", 0)}, data_dir=Path())
    # One more than the bound may be decided, and what ticks and heartbeats decide is not refused.
    assert controller_host.IN_FLIGHT_BYTES_MAX + 8 * largest <= quorum.pending_bytes_max
    assert quorum.pending_proposals_max >= controller_host.IN_FLIGHT_MAX * 2


async def test_a_batch_of_another_epoch_than_its_entry_is_void() -> None:
    setup = Setup()
    assert setup.log.machine is not None
    prepare_broker(setup)
    before = setup.controller.committed.copy()
    payload = encode_batch(
        MetadataBatch(
            controller_epoch=1, records=tuple(r for _, _, rs in Cluster().log for r in rs)
        ),
        level=LEVEL,
    )
    setup.log.machine.apply(before.offset + 1, 2, payload)
    after = setup.controller.committed
    assert (after.offset, after.epoch) == (before.offset + 1, 2)
    assert after.brokers == before.brokers
    assert after.features == before.features


async def test_a_snapshot_is_the_state_at_its_moment_whatever_comes_after() -> None:
    setup = Setup()
    assert setup.log.machine is not None
    prepare_broker(setup)
    encode = setup.log.machine.snapshot()
    before = setup.controller.committed.copy()
    no_op = encode_batch(MetadataBatch(controller_epoch=5, records=(NoOp(),)), level=LEVEL)
    setup.log.machine.apply(before.offset + 1, 5, no_op)
    other = Setup()
    assert other.log.machine is not None
    other.log.machine.restore(before.offset, before.epoch, encode())()
    assert other.controller.committed == before


async def test_the_last_stream_of_a_broker_is_the_one_whose_end_counts() -> None:
    from odradek_protocol.identity import BrokerId

    setup = Setup()
    told: list[int] = []
    setup.controller.stream_broken = lambda broker_id, _: told.append(broker_id)  # type: ignore[method-assign]
    one = BrokerId(1)
    setup.host.stream_opened(one)
    setup.host.stream_opened(one)
    setup.host.stream_ended(one)
    assert not told
    setup.host.stream_ended(one)
    assert told == [1]


async def test_a_batch_of_a_newer_program_is_not_applied_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A controller that skipped unknown records would have other metadata than the others."""
    setup = Setup()
    assert setup.log.machine is not None
    prepare_broker(setup)
    before = setup.controller.committed.copy()
    raised = FeatureLevel(name="metadata.version", level=LEVEL + 1)
    payload = encode_batch(MetadataBatch(controller_epoch=1, records=(raised,)), level=LEVEL)
    with pytest.raises(NewerProgramNeeded):
        setup.log.machine.apply(before.offset + 1, 1, payload)
    assert setup.controller.committed.features == before.features
    told = [
        r
        for r in caplog.records
        if r.message.startswith("Failed to read metadata that a newer release wrote")
    ]
    assert len(told) == 1
    assert "a newer program is needed" in told[0].odradek_fields["reason"]  # type: ignore[attr-defined]
