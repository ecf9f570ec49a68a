"""A follower's stream ends when it is closed, whatever its leader does at that moment."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from odradek_broker.replication.streams import follower_stream
from odradek_broker.replication.streams.follower_stream import (
    FollowerIdentity,
    FollowerStream,
    Lane,
    StreamBroken,
)
from odradek_protocol.identity import BrokerEpoch, BrokerId, ClusterId, DirectoryId
from odradek_runtime.clock import SYSTEM_CLOCK, Clock

LEADER = BrokerId(1)
BOUND_S = 10.0


class DyingLeader:
    """A leader that ends the stream while a write of the follower takes a moment to be
    cancelled.
    """

    def __init__(self) -> None:
        self.is_writing = asyncio.Event()
        self.breaks = asyncio.Event()
        self.is_cancelling = asyncio.Event()
        self.may_end_write = asyncio.Event()

    async def write(self, request: Any) -> None:
        if request.HasField("hello"):
            return
        self.is_writing.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelling.set()
            await self.may_end_write.wait()

    async def accepted(self) -> None:
        pass

    async def read(self) -> bytes:
        await self.breaks.wait()
        raise StreamBroken("the leader is gone")

    async def close(self) -> None:
        pass


def follower_of(leader: Any, clock: Clock = SYSTEM_CLOCK) -> FollowerStream:
    return FollowerStream(
        LEADER,
        Lane.HOT,
        identity=FollowerIdentity(
            cluster_id=ClusterId("c"),
            broker_id=BrokerId(2),
            broker_epoch=BrokerEpoch(1),
            directory_id=DirectoryId(b"d" * 16),
            credit_bytes=1 << 20,
        ),
        endpoint_of=lambda _: ("127.0.0.1", 1),
        dial=lambda *_: leader,
        clock=clock,
        session_ids=itertools.count(1),
        by_session={},
        on_distance=lambda *_: None,
        on_ready=lambda *_: None,
    )


async def broken_while_writing(stream: FollowerStream, leader: DyingLeader) -> None:
    stream._detaches[b"t", 0] = follower_stream.common_pb2.TopicIdPartition()
    while not leader.is_writing.is_set():
        stream._outbox_wake.set()
        await asyncio.sleep(0)
        stream._detaches[b"t", 0] = follower_stream.common_pb2.TopicIdPartition()
    leader.breaks.set()
    await leader.is_cancelling.wait()


async def test_it_closes_while_the_leader_breaks_off() -> None:
    """This happens when all brokers of a cluster are stopped at once."""
    leader = DyingLeader()
    stream = follower_of(leader)
    await asyncio.wait_for(broken_while_writing(stream, leader), BOUND_S)
    closing = asyncio.create_task(stream.close())
    await asyncio.sleep(0)
    leader.may_end_write.set()
    await asyncio.wait_for(closing, BOUND_S)


async def test_it_ends_while_the_leader_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens when the last partition has moved to another leader."""
    monkeypatch.setattr(follower_stream, "_LINGER_S", 0.0)
    leader = DyingLeader()
    stream = follower_of(leader)
    await asyncio.wait_for(broken_while_writing(stream, leader), BOUND_S)
    ended: list[FollowerStream] = []
    stream.end(ended.append)
    while not stream._task.cancelling():  # noqa: ASYNC110
        await asyncio.sleep(0)
    leader.may_end_write.set()
    await asyncio.wait({stream._task}, timeout=BOUND_S)
    assert stream._task.done()
    await asyncio.sleep(0)
    assert ended == [stream]


class SetClock(Clock):
    """A clock that the test sets."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


class AbsentLeader:
    """A leader that nothing reaches, at first."""

    def __init__(self) -> None:
        self.attempts = 0
        self.is_absent = True

    async def write(self, request: Any) -> None:
        self.attempts += 1
        if self.is_absent:
            raise StreamBroken("UNAVAILABLE: no such name")

    async def accepted(self) -> None:
        pass

    async def read(self) -> bytes:
        raise StreamBroken("the leader is gone")

    async def close(self) -> None:
        pass


async def test_a_leader_that_cannot_be_reached_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader, clock = AbsentLeader(), SetClock()
    stream = follower_of(leader, clock)

    async def dial_again(*, at_ms: int) -> int:
        """Return the number of warnings after two more attempts."""
        clock.now_ms, before = at_ms, leader.attempts
        while leader.attempts < before + 3:  # the third begins when the second has been reported
            stream.kick()
            await asyncio.sleep(0)
        return sum(
            "Failed to connect to a leader" in record.getMessage() for record in caplog.records
        )

    async with asyncio.timeout(BOUND_S):
        assert await dial_again(at_ms=0) == 0
        assert await dial_again(at_ms=4_999) == 0, "a restart"
        assert await dial_again(at_ms=5_000) == 1
        assert await dial_again(at_ms=64_999) == 1
        assert await dial_again(at_ms=65_000) == 2
        leader.is_absent = False
        assert await dial_again(at_ms=200_000) == 2
        leader.is_absent = True
        assert await dial_again(at_ms=200_000) == 2, "each outage begins with a restart's time"
        await stream.close()
