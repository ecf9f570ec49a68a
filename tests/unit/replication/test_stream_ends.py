"""A replication stream's two ends in memory: fields arrive as sent; only valid peers open one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from odradek_broker.access.quotas import TokenBucket
from odradek_broker.partition import effects as fx
from odradek_broker.partition import events as ev
from odradek_broker.replication.streams.follower_sessions import (
    Refusal,
    StreamRefused,
)
from odradek_broker.replication.streams.follower_stream import (
    ATTACHES_PER_MESSAGE_MAX,
    Lane,
)
from odradek_protocol.identity import (
    BrokerEpoch,
    LeaderEpoch,
    Offset,
)
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import replication_service_pb2 as pb
from odradek_runtime.clock import Clock
from tests.unit.replication.stream_ends import (
    CLUSTER,
    CREDIT_BYTES,
    FOLLOWER,
    LEADER,
    TOPIC_ID,
    Connection,
    Ends,
    connected,
    until,
)

ANSWERS: list[tuple[Any, Any]] = [
    (
        fx.SendAttached(
            session=None,  # type: ignore[arg-type]  # it is known once the stream is open
            attach_seq=3,
            leader_epoch=LeaderEpoch(5),
            high_watermark=Offset(11),
            log_start=Offset(7),
        ),
        ev.AttachedReceived(
            session_id=1,
            attach_seq=3,
            leader_epoch=LeaderEpoch(5),
            high_watermark=Offset(11),
            log_start=Offset(7),
        ),
    ),
    (
        fx.SendDiverged(
            session=None,  # type: ignore[arg-type]
            attach_seq=3,
            leader_epoch=LeaderEpoch(5),
            for_log_end=Offset(20),
            for_last_epoch=LeaderEpoch(4),
            epoch=LeaderEpoch(2),
            end_offset=Offset(17),
        ),
        ev.DivergedReceived(
            session_id=1,
            attach_seq=3,
            leader_epoch=LeaderEpoch(5),
            for_log_end=Offset(20),
            for_last_epoch=LeaderEpoch(4),
            epoch=LeaderEpoch(2),
            end_offset=Offset(17),
        ),
    ),
    (
        fx.SendSnapshotless(
            session=None,  # type: ignore[arg-type]
            attach_seq=3,
            leader_epoch=LeaderEpoch(5),
            log_start=Offset(40),
        ),
        ev.SnapshotlessReceived(
            session_id=1, attach_seq=3, leader_epoch=LeaderEpoch(5), log_start=Offset(40)
        ),
    ),
    (
        fx.SendRefused(
            session=None,  # type: ignore[arg-type]
            attach_seq=3,
            error_code=ErrorCode.FENCED_LEADER_EPOCH,
            leader_epoch=LeaderEpoch(5),
        ),
        ev.RefusedReceived(
            session_id=1,
            attach_seq=3,
            error_code=ErrorCode.FENCED_LEADER_EPOCH,
            leader_epoch=LeaderEpoch(5),
        ),
    ),
]


@pytest.mark.parametrize(("effect", "event"), ANSWERS, ids=lambda value: type(value).__name__)
async def test_an_answer_to_an_attach_arrives_with_every_field(effect: Any, event: Any) -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        ends.leader_stream.send(leader, replace(effect, session=ends.session))
        await until(lambda: follower.of(type(event)))
        assert follower.of(type(event)) == [event]
        is_pushed_to = leader in ends.leader_stream.hosts
        assert is_pushed_to == isinstance(effect, fx.SendAttached)


async def test_what_a_follower_sends_arrives_with_every_field() -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        ends.stream.send_attach(
            follower,
            fx.SendAttach(
                session_id=1,
                attach_seq=3,
                leader_epoch=LeaderEpoch(5),
                log_end=Offset(20),
                last_epoch=LeaderEpoch(4),
                log_start=Offset(7),
            ),
        )
        ack = fx.SendAck(
            session_id=1,
            leader_epoch=LeaderEpoch(5),
            ack_to=Offset(21),
            is_synced=True,
            log_start=Offset(8),
        )
        ends.stream.send_ack(follower, ack)
        await until(lambda: len(leader.events) == 2)
        ends.stream.send_ack(follower, replace(ack, ack_to=Offset(22)))
        ends.stream.send_ack(follower, replace(ack, ack_to=Offset(23), is_synced=False))
        await until(lambda: len(leader.events) == 3)
        ends.stream.send_detach(follower)
        await until(lambda: len(leader.events) == 4)
        received = ev.AckReceived(
            session=ends.session,
            leader_epoch=LeaderEpoch(5),
            ack_to=Offset(21),
            is_synced=True,
            log_start=Offset(8),
        )
        assert leader.events == [
            ev.AttachReceived(
                session=ends.session,
                attach_seq=3,
                leader_epoch=LeaderEpoch(5),
                log_end=Offset(20),
                last_epoch=LeaderEpoch(4),
                log_start=Offset(7),
            ),
            received,
            # The latest of one turn replaces those before it.
            replace(received, ack_to=Offset(23), is_synced=False),
            ("detached", ends.session),
        ]


async def test_the_hello_names_the_broker_its_session_and_its_lane() -> None:
    for lane, is_catch_up, credit_bytes in (
        (Lane.HOT, False, CREDIT_BYTES),
        (Lane.CATCH_UP, True, CREDIT_BYTES // 4),
    ):
        async with connected(lane=lane) as ends:
            assert ends.session == ev.FollowerSession(
                broker_id=FOLLOWER,
                broker_epoch=BrokerEpoch(7),
                session_id=1,
                is_catch_up=is_catch_up,
            )
            hello = ends.connections[0].sent[0].hello
            assert (hello.cluster_id, hello.directory_id) == (CLUSTER, b"d" * 16)
            assert hello.credit_bytes == credit_bytes


async def test_many_attaches_go_in_messages_of_a_bounded_size() -> None:
    count = 2 * ATTACHES_PER_MESSAGE_MAX + 1
    async with connected() as ends:
        pairs = [ends.add(index) for index in range(count)]
        for _, follower in pairs:
            ends.stream.send_attach(
                follower,
                fx.SendAttach(
                    session_id=1,
                    attach_seq=1,
                    leader_epoch=LeaderEpoch(0),
                    log_end=Offset(0),
                    last_epoch=LeaderEpoch(-1),
                    log_start=Offset(0),
                ),
            )
        await until(lambda: all(len(leader.events) == 1 for leader, _ in pairs))
        sizes = [len(r.attach.partitions) for r in ends.connections[0].sent if r.HasField("attach")]
        assert sizes == [ATTACHES_PER_MESSAGE_MAX, ATTACHES_PER_MESSAGE_MAX, 1]


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_attach_of_a_partition_that_is_not_here_is_refused_with_the_reason(
    is_known: bool,
) -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        del ends.table.by_id[TOPIC_ID, 4]
        if is_known:
            ends.table.image.topics[TOPIC_ID] = object()
        ends.stream.send_attach(
            follower,
            fx.SendAttach(
                session_id=1,
                attach_seq=3,
                leader_epoch=LeaderEpoch(5),
                log_end=Offset(0),
                last_epoch=LeaderEpoch(-1),
                log_start=Offset(0),
            ),
        )
        await until(lambda: follower.of(ev.RefusedReceived))
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_known else ErrorCode.UNKNOWN_TOPIC_ID
        assert follower.of(ev.RefusedReceived) == [
            ev.RefusedReceived(
                session_id=1, attach_seq=3, error_code=code, leader_epoch=LeaderEpoch(5)
            )
        ]
        assert leader.events == []


async def test_a_partition_is_ready_in_each_session_and_hears_of_its_end() -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        other_leader, _ = ends.add(5)
        await until(lambda: follower.of(ev.SessionReady))
        first = ends.session
        attached = replace(ANSWERS[0][0], session=first)
        ends.leader_stream.send(leader, attached)
        ends.connections[0].cut()
        await until(lambda: len(follower.of(ev.SessionReady)) == 2)
        assert follower.of(ev.SessionReady) == [
            ev.SessionReady(session_id=1, leader=LEADER),
            ev.SessionReady(session_id=2, leader=LEADER),
        ]
        assert follower.of(ev.LeaderSessionClosed) == [ev.LeaderSessionClosed(session_id=1)]
        assert leader.events == [("closed", first)]
        assert other_leader.events == [], "it was not attached"
        assert list(ends.by_session) == [2]
        await until(lambda: list(ends.table.leader_streams) == [ends.session])
        assert ends.session.session_id == 2


async def test_messages_that_waited_for_a_stream_that_broke_are_not_sent_in_the_next_one() -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        await until(lambda: follower.of(ev.SessionReady))
        ack = fx.SendAck(
            session_id=1,
            leader_epoch=LeaderEpoch(5),
            ack_to=Offset(21),
            is_synced=False,
            log_start=Offset(0),
        )
        ends.connections[0].cut()
        await until(lambda: not ends.by_session)
        ends.stream.send_ack(follower, ack)
        ends.stream.send_detach(follower)
        ends.stream.send_attach(
            follower,
            fx.SendAttach(
                session_id=1,
                attach_seq=3,
                leader_epoch=LeaderEpoch(5),
                log_end=Offset(0),
                last_epoch=LeaderEpoch(-1),
                log_start=Offset(0),
            ),
        )
        await until(lambda: len(follower.of(ev.SessionReady)) == 2)
        ends.stream.send_ack(follower, replace(ack, ack_to=Offset(30)))
        await until(lambda: leader.events)
        assert [type(event) for event in leader.events] == [ev.AckReceived]
        assert leader.events[0].ack_to == 30


async def test_a_partition_that_leaves_is_detached_and_sends_nothing_more() -> None:
    async with connected() as ends:
        leader, follower = ends.add(4)
        await until(lambda: follower.of(ev.SessionReady))
        ends.stream.send_ack(
            follower,
            fx.SendAck(
                session_id=1,
                leader_epoch=LeaderEpoch(5),
                ack_to=Offset(21),
                is_synced=False,
                log_start=Offset(0),
            ),
        )
        ends.stream.remove((TOPIC_ID, 4))
        await until(lambda: leader.events)
        assert leader.events == [("detached", ends.session)]
        assert ends.stream.is_empty
        assert not ends.stream.has((TOPIC_ID, 4))


async def test_a_partition_that_moves_to_the_other_lane_is_not_detached_by_the_stream() -> None:
    async with connected() as ends:
        leader, _ = ends.add(4)
        other_leader, other = ends.add(5)
        await until(lambda: other.of(ev.SessionReady))
        ends.stream.give_up((TOPIC_ID, 4))
        ends.stream.send_detach(other)
        await until(lambda: other_leader.events)
        assert leader.events == []
        assert ends.stream.has((TOPIC_ID, 5))


def _hello(**fields: Any) -> pb.ReplicateRequest:
    hello = pb.ReplicaHello(
        cluster_id=CLUSTER,
        broker_id=FOLLOWER,
        broker_epoch=7,
        session_id=5,
        credit_bytes=1,
        lane=pb.REPLICATION_LANE_HOT,
    )
    hello.MergeFrom(pb.ReplicaHello(**fields))
    return pb.ReplicateRequest(hello=hello)


@pytest.mark.parametrize(
    ("first", "refusal", "text"),
    [
        (None, Refusal.NO_HELLO, "must be Hello"),
        (pb.ReplicateRequest(credit_bytes=1), Refusal.NO_HELLO, "must be Hello"),
        (_hello(cluster_id="other"), Refusal.NOT_PERMITTED, "cluster c, not of other"),
        (_hello(broker_id=3), Refusal.NOT_PERMITTED, "does not name broker 3"),
    ],
)
async def test_a_stream_that_may_not_be_opened_is_refused(
    first: pb.ReplicateRequest | None, refusal: Refusal, text: str
) -> None:
    ends = Ends()
    connection = Connection()
    connection.requests.put_nowait(None if first is None else first.SerializeToString())
    with pytest.raises(StreamRefused, match=text) as refused:
        await ends.sessions.serve(connection.leader)  # type: ignore[arg-type]
    assert refused.value.refusal is refusal
    assert not connection.is_accepted.is_set()
    await ends.close()


@pytest.mark.parametrize(
    ("fields", "is_newer"),
    [
        ({"session_id": 6}, True),
        ({"broker_epoch": 8, "session_id": 1}, True),
        ({"session_id": 5}, False),
        ({"session_id": 4}, False),
        ({"broker_epoch": 6, "session_id": 9}, False),
    ],
)
async def test_the_newest_session_of_a_lane_is_served(
    fields: dict[str, int], is_newer: bool
) -> None:
    ends = Ends()
    old, new, other_lane = (Connection() for _ in range(3))
    hellos = (_hello(), _hello(**fields), _hello(session_id=1, lane=pb.REPLICATION_LANE_CATCH_UP))
    serving = []
    for connection, hello in zip((old, new, other_lane), hellos, strict=True):
        connection.requests.put_nowait(hello.SerializeToString())
        serving.append(asyncio.ensure_future(ends.sessions.serve(connection.leader)))  # type: ignore[arg-type]
        await until(lambda c=connection, s=serving[-1]: c.is_accepted.is_set() or s.done())  # type: ignore[misc]
    if is_newer:
        await until(serving[0].done)
        assert serving[0].cancelled()
        assert not serving[1].done()
    else:
        assert not serving[0].done()
        refused = serving[1].exception()
        assert isinstance(refused, StreamRefused)
        assert refused.refusal is Refusal.SUPERSEDED
    assert not serving[2].done(), "the other lane has sessions of its own"
    sessions = sorted((s.is_catch_up, s.session_id) for s in ends.table.leader_streams)
    newest = hellos[1] if is_newer else hellos[0]
    assert sessions == [(False, newest.hello.session_id), (True, 1)]
    for connection in (old, new, other_lane):
        connection.cut()
    await asyncio.gather(*serving, return_exceptions=True)
    assert ends.table.leader_streams == {}
    again = Connection()
    again.requests.put_nowait(_hello(session_id=1).SerializeToString())
    last = asyncio.ensure_future(ends.sessions.serve(again.leader))  # type: ignore[arg-type]
    await until(again.is_accepted.is_set)
    again.cut()
    await last
    await ends.close()


def _data(index: int, size_bytes: int) -> bytes:
    message = pb.LeaderMessage(leader_epoch=5)
    message.partition.topic_id, message.partition.partition = TOPIC_ID, index
    message.data.base_offset, message.data.high_watermark, message.data.log_start = 20, 90, 7
    message.data.records = b"r" * size_bytes
    return pb.ReplicateResponse(messages=[message]).SerializeToString()


@pytest.mark.parametrize(("lane", "distances"), [(Lane.HOT, []), (Lane.CATCH_UP, [68])])
async def test_data_arrives_with_every_field_and_its_distance_may_change_the_lane(
    lane: Lane, distances: list[int]
) -> None:
    async with connected(lane=lane) as ends:
        _, follower = ends.add(4)
        follower.replica.log_end = 22
        await until(lambda: follower.of(ev.SessionReady))
        ends.connections[0].responses.put_nowait(_data(4, 10))
        await until(lambda: follower.of(dict))
        assert follower.of(dict) == [
            {
                "session_id": 1,
                "leader_epoch": 5,
                "base_offset": 20,
                "high_watermark": 90,
                "log_start": 7,
                "records": b"r" * 10,
            }
        ]
        await until(lambda: ends.distances == distances)
        ends.leader_stream.send(
            ends.at_leader[4],
            replace(ANSWERS[0][0], session=ends.session, high_watermark=Offset(25)),
        )
        await until(lambda: ends.distances == [*distances, 3])


async def test_credit_is_returned_by_the_quarter_also_for_a_partition_that_left() -> None:
    quarter_bytes = CREDIT_BYTES // 4
    async with connected() as ends:
        _, follower = ends.add(4)
        connection = ends.connections[0]
        credits = lambda: [r.credit_bytes for r in connection.sent if r.HasField("credit_bytes")]  # noqa: E731
        connection.responses.put_nowait(_data(4, quarter_bytes - 1))
        await until(lambda: follower.of(dict))
        for _ in range(10):
            await asyncio.sleep(0)
        assert credits() == []
        connection.responses.put_nowait(_data(9, 1))
        await until(credits)
        assert credits() == [quarter_bytes]
        connection.responses.put_nowait(_data(4, quarter_bytes))
        await until(lambda: len(credits()) == 2)
        assert credits() == [quarter_bytes, quarter_bytes]
        expected_bytes = CREDIT_BYTES + 2 * quarter_bytes
        await until(lambda: ends.leader_stream._credit_bytes == expected_bytes)


class Second(Clock):
    """A clock that stands still until the test moves it."""

    now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms


async def test_a_throttled_stream_returns_credit_only_when_its_debt_is_paid() -> None:
    size_bytes, clock = CREDIT_BYTES, Second()
    bucket = TokenBucket(rate=20 * size_bytes, burst_s=0.05, now_s=1.0)
    async with connected(lane=Lane.CATCH_UP, throttle=bucket, clock=clock) as ends:
        connection = ends.connections[0]

        def returned() -> list[int]:
            return [r.credit_bytes for r in connection.sent if r.HasField("credit_bytes")]

        connection.responses.put_nowait(_data(9, 2 * size_bytes))
        await until(returned)
        # The bucket held one of the two: the debt of the other lasts 50 ms.
        assert bucket.debt_s(1.0) == pytest.approx(0.05)
        connection.responses.put_nowait(_data(9, size_bytes))
        await until(lambda: ends.stream._throttle_timer is not None)
        timer = ends.stream._throttle_timer
        connection.responses.put_nowait(_data(9, size_bytes))
        await until(lambda: ends.stream._consumed_bytes == 2 * size_bytes)
        assert returned() == [2 * size_bytes]
        assert ends.stream._throttle_timer is timer, "one timer at a time"
        clock.now_ms += 50
        await until(lambda: returned() == [2 * size_bytes, 2 * size_bytes])
        bucket.take(1 << 40, 1.05)
        assert ends.stream._is_throttled()
        ends.stream._outbox_wake.clear()
        ends.stream.throttle_changed()
        assert ends.stream._outbox_wake.is_set(), "or it would wait as the old rate required"
