"""A leader's reads from disk for a follower: those that fail, find nothing or complete too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from odradek_broker.log.log_reads import ReadResult
from odradek_broker.log.storage import StorageFailed, StorageRefused
from odradek_broker.replication.streams import leader_stream
from odradek_broker.replication.streams.leader_stream import LeaderStream
from tests.unit.replication.test_leader_stream import (
    Host,
    Log,
    Plan,
    Shared,
    _attach,
    _next,
    _stream,
)


class ColdLog(Log):
    """A log whose reads go to the disk, and have the results that the test chooses."""

    is_hot = False

    def __init__(self, run: Callable[[ReadResult], ReadResult]) -> None:
        self._run = run

    def plan_read(self, *args: Any, **named: Any) -> Any:
        plan: Plan = super().plan_read(*args, **named)
        whole = plan.run()
        plan.run = lambda: self._run(whole)  # type: ignore[method-assign]
        return plan


class ReadHost(Host):
    """A replica that leads, and records failed reads."""

    def __init__(self, run: Callable[[ReadResult], ReadResult]) -> None:
        super().__init__(0)
        self.log = ColdLog(run)
        self.log_end = 1
        self.bugs: list[Exception] = []
        self.failures: list[StorageFailed] = []

    def found_bug(self, error: Exception) -> None:
        self.bugs.append(error)

    def read_failed(self, failure: StorageFailed) -> None:
        self.failures.append(failure)


async def reading(
    run: Callable[[ReadResult], ReadResult],
) -> tuple[LeaderStream, ReadHost, Shared]:
    """Attach a follower, and begin the read of its first batch."""
    shared, host = Shared(), ReadHost(run)
    stream = _stream(shared=shared)
    _attach(stream, host)
    stream.mark_due(host)  # type: ignore[arg-type]
    assert [m.WhichOneof("message") for m in await _next(stream)] == ["attached"]
    assert len(shared.pool.jobs) == 1
    return stream, host, shared


async def is_read_again(stream: LeaderStream, shared: Shared) -> bool:
    waiting = asyncio.ensure_future(stream.next_message())
    for _ in range(20):
        await asyncio.sleep(0)
    waiting.cancel()
    return bool(shared.pool.jobs)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once what would be retried later."""
    monkeypatch.setattr(leader_stream, "_REREAD_DELAY_S", 0.0)


def raising(error: Exception) -> Callable[[ReadResult], ReadResult]:
    def run(_: ReadResult) -> ReadResult:
        raise error

    return run


async def test_a_bug_in_a_read_is_the_partitions() -> None:
    bug = AssertionError("the index is behind the log")
    stream, host, shared = await reading(raising(bug))
    shared.pool.finish()
    assert host.bugs == [bug]
    assert host.failures == []
    assert not await is_read_again(stream, shared)


@pytest.mark.parametrize("kind", [StorageFailed, StorageRefused])
async def test_only_a_read_that_was_refused_is_tried_again(kind: type[StorageFailed]) -> None:
    failure = kind("reading: injected")
    stream, host, shared = await reading(raising(failure))
    shared.pool.finish()
    assert host.failures == [failure]
    assert host.bugs == []
    assert await is_read_again(stream, shared) == (kind is StorageRefused)


async def test_a_read_that_found_nothing_is_tried_again() -> None:
    """The segment was deleted meanwhile, so a later read begins at the log's new start."""
    stream, host, shared = await reading(
        lambda whole: ReadResult([], whole.start_offset, whole.start_offset, 0)
    )
    shared.pool.finish()
    assert (host.bugs, host.failures) == ([], [])
    assert await is_read_again(stream, shared)


async def test_a_read_that_ends_after_the_stream_does_nothing() -> None:
    stream, host, shared = await reading(lambda whole: whole)
    stream.close()
    shared.pool.finish()
    assert (host.bugs, host.failures) == ([], [])
    assert not await is_read_again(stream, shared)
    assert stream._cold_total_bytes == 0


async def test_what_was_read_goes_to_the_follower() -> None:
    stream, _, shared = await reading(lambda whole: whole)
    shared.pool.finish()
    (message,) = await _next(stream)
    assert message.data.records == b"a" * 100


async def test_a_message_that_is_full_takes_nothing_more() -> None:
    stream = _stream()  # 500 bytes of a partition, 1,000 of a message
    hosts = [Host(index) for index in range(3)]
    for host in hosts:
        host.log_end = 5
        stream.mark_due(host)  # type: ignore[arg-type]
    sizes = [[len(m.data.records) for m in await _next(stream)] for _ in range(2)]
    assert sizes == [[500, 500], [500]]
