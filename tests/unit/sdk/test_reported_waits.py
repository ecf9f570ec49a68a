"""If an admin call, a group member or a commit waits for a long time, the SDK logs the reason."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import Message

from odradek import GroupOptions
from odradek.admin.admin import Admin
from odradek.cluster.wait_report import reported_wait
from odradek.errors import BrokersUnavailable
from odradek.testing import MemoryCluster
from odradek.testing.memory_broker import GROUP_CALLS
from odradek.testing.memory_state import MemoryState
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1 import group_service_pb2 as pb

UNREACHABLE = "memory-1:9090 (connection refused)"


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.1)


def waits(caplog: pytest.LogCaptureFixture, what: str = "") -> list[str]:
    """Return the logged waits for `what`. On a busy machine, other calls take longer than WAIT_REPORT_S, too."""
    start = f"Waiting for {what}"
    return [record.message for record in caplog.records if record.message.startswith(start)]


def respond_first(monkeypatch: pytest.MonkeyPatch, method: str, responses: list[Message]) -> None:
    """Let brokers respond to the first calls of a group method with these responses."""
    kind, handler = GROUP_CALLS[method]

    def respond(cluster: MemoryState, broker_id: int, request: Message) -> Message:
        return responses.pop() if responses else handler(cluster, broker_id, request)

    monkeypatch.setitem(GROUP_CALLS, method, (kind, respond))


async def until_logged(caplog: pytest.LogCaptureFixture, what: str, reason: str) -> None:
    """Wait until a wait for `what` was logged with this reason."""
    async with asyncio.timeout(30):
        while not any(reason in text for text in waits(caplog, what)):  # noqa: ASYNC110 - a log record sets no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda admin: admin.create_topic("orders"), "the response to CreateTopics"),
        (lambda admin: admin.list_topics(), "the cluster's metadata"),
    ],
)
async def test_an_admin_call_without_any_reachable_broker_logs_why_it_waits(
    call: Callable[[Admin], Awaitable[object]], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.kill(1)
    async with cluster.client() as client:
        with pytest.raises(BrokersUnavailable):
            await call(Admin(cluster=client._cluster, timeout_s=1.5))
    text = next(text for text in waits(caplog, f"{what}, for ") if UNREACHABLE in text)
    assert " s so far: no broker" in text


async def test_an_admin_call_whose_coordinator_is_loading_logs_this(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(brokers=1)
    loading = pb.ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    respond_first(monkeypatch, "ListGroups", [loading] * 6)
    async with cluster.client() as client:
        await client.admin.list_groups()
    texts = waits(caplog, "the response to ListGroups, for ")
    assert any("coordinator load in progress" in text for text in texts)


async def test_a_quick_admin_call_logs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 60)
    async with MemoryCluster(brokers=1).client() as client:
        await client.admin.create_topic("orders")
    assert waits(caplog) == []


async def test_a_consumer_that_cannot_join_its_group_logs_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders")
    async with cluster.client() as client:
        await client.connect(30)
        cluster.kill(1, elect=False)
        async with client.consumer("orders", group="billing"):
            await until_logged(caplog, "group 'billing' to accept this member, for ", UNREACHABLE)
            cluster.start(1)


async def test_a_member_of_a_group_whose_topic_does_not_exist_logs_it_with_similar_topics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders")
    async with (
        cluster.client() as client,
        client.producer() as producer,
        client.consumer("ordres", group="billing", auto_offset_reset="earliest") as consumer,
    ):
        async with asyncio.timeout(30):
            while "'ordres'" not in caplog.text:  # noqa: ASYNC110 - a log record sets no event
                await asyncio.sleep(0.01)
        assert "did you mean 'orders'?" in caplog.text
        assert waits(caplog, "partitions of group") == []
        cluster.create_topic("ordres")
        await producer.send_and_wait("ordres", b"1")
        assert (await anext(consumer)).value == b"1"


async def test_a_member_without_partitions_logs_that_others_own_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 60)
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders", partitions=1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send_and_wait("orders", b"1")
        async with client.consumer(
            "orders", group="billing", auto_offset_reset="earliest"
        ) as first:
            await anext(first)
            assert waits(caplog) == []
            monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.1)
            async with client.consumer("orders", group="billing"):
                await until_logged(
                    caplog, "partitions of group 'billing', for ", "consumer.session.timeout.ms"
                )


async def test_a_long_wait_is_logged_again_with_its_whole_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.REPEATED_REPORT_S", 0.2)
    with reported_wait("a response", lambda: "the same reason", waited_s=100):
        async with asyncio.timeout(30):
            while len(waits(caplog)) < 2:  # noqa: ASYNC110 - a log record sets no event
                await asyncio.sleep(0.01)
    for text in waits(caplog):
        assert re.fullmatch(r"Waiting for a response, for 1\d\d s so far: the same reason", text)


async def test_a_commit_during_a_move_of_the_coordinator_logs_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("orders")
    moved = pb.CommitOffsetsResponse(error_code=ErrorCode.NOT_COORDINATOR)
    options = GroupOptions(group="billing", auto_commit=False)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send_and_wait("orders", b"1")
        async with client.consumer(
            "orders", group=options, auto_offset_reset="earliest"
        ) as consumer:
            await anext(consumer)
            respond_first(monkeypatch, "CommitOffsets", [moved] * 4)
            await consumer.commit()
    texts = waits(caplog, "a commit of group 'billing', for ")
    assert any(" s so far: a commit of group 'billing': " in text for text in texts)


async def test_many_calls_that_wait_for_the_same_log_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 1)
    cluster = MemoryCluster(brokers=1)
    cluster.kill(1)
    async with cluster.client() as client:
        admin = Admin(cluster=client._cluster, timeout_s=1.5)
        calls = (admin.create_topic("orders") for _ in range(200))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, BrokersUnavailable) for result in results)
    counts = Counter(waits(caplog))
    assert max(counts.values()) == 1
    assert len(counts) <= 3
