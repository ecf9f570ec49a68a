"""Responses of a coordinator that its caller gets without a coroutine."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_broker.coordination.coordinator_host import CoordinatorHost
from odradek_broker.coordination.hosted_shard import CoordinatorError
from odradek_broker.coordinator_step import (
    NOTHING,
    respond,
)
from odradek_protocol.topic_names import OFFSETS_TOPIC
from tests.unit.replication.partitions_in_memory import PartitionInMemory
from tests.unit.replication.tally import EPOCH, FIRST, SECOND, Tally, TallyKind, add, ask


def shaped(response: Any) -> str:
    return f"<{response.code.name if isinstance(response, CoordinatorError) else response}>"


async def test_a_response_that_waits_for_no_write_is_there_at_once(
    host: CoordinatorHost[Tally],
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add("a"))
    reads = host.ask_soon(FIRST, lambda shard, i: respond(i, shard.count), shaped)
    assert reads.done()
    assert reads.result() == "<1>"
    writes = host.ask_soon(FIRST, add("b"), shaped)
    assert not writes.done(), "the record is not committed yet"
    assert await writes == "<2>"
    with pytest.raises(CoordinatorError):
        host.ask_soon(SECOND, add("c"), shaped)


async def test_a_coordinator_without_a_lease_answers_no_request(
    host: CoordinatorHost[Tally], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add("a"))
    writes = host.ask_soon(FIRST, add("b"), shaped)
    monkeypatch.setattr(PartitionInMemory, "may_respond", lambda self, epoch: False)
    reads = host.ask_soon(FIRST, lambda shard, i: respond(i, shard.count), shaped)
    assert [await writes, await reads] == ["<NOT_COORDINATOR>"] * 2


async def test_a_request_that_waits_learns_that_its_shard_closed(
    host: CoordinatorHost[Tally],
) -> None:
    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add("a"))
    waits = host.ask_soon(FIRST, lambda *_: NOTHING, shaped)
    host.on_resigned(OFFSETS_TOPIC, FIRST)
    assert waits.result() == "<NOT_COORDINATOR>"


async def test_a_response_that_cannot_be_encoded_fails_its_request_alone(
    host: CoordinatorHost[Tally], kind: TallyKind
) -> None:
    def fail(_: Any) -> str:
        raise AssertionError("a bug")

    host.on_leader(OFFSETS_TOPIC, FIRST, EPOCH)
    await ask(host, FIRST, add("a"))
    fails, succeeds = host.ask_soon(FIRST, add("b"), fail), host.ask_soon(FIRST, add("c"), shaped)
    assert await succeeds == "<3>"
    assert isinstance(fails.exception(), AssertionError)
    assert len(kind.made) == 1, "the shard goes on"
