"""`odradek produce` says why records are not acknowledged, and why it ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odradek.cli import connection
from odradek.cli.main import app
from odradek.errors import BrokersUnavailable, DeliveryTimedOut, OdradekError
from odradek.producer.sender import Sender, SentRequest
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.rpc.v1.broker_service_pb2 import ProduceResponse


def test_an_error_before_any_record_was_written_is_not_called_an_interruption(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = MemoryCluster()
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    result = CliRunner().invoke(app, ["produce", "nosuch", str(lines)])
    assert "topic 'nosuch' does not exist" in str(result.exception)
    assert result.stderr == ""


def test_a_misspelt_topic_is_refused_with_similar_topics_and_the_command_to_create_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = MemoryCluster(auto_create_topics=True)
    cluster.create_topic("orders")
    monkeypatch.setattr(connection, "open_client", lambda bootstrap: cluster.client())
    lines = tmp_path / "lines"
    lines.write_text("a\n")
    monkeypatch.setattr("odradek.cluster.cluster.UNKNOWN_TOPIC_S_MAX", 0.01)
    refused = CliRunner().invoke(app, ["produce", "ordres", str(lines)])
    assert "did you mean 'orders'? If not, create it (`odradek topic create ordres`)" in str(
        refused.exception
    )
    assert "ordres" not in cluster.topics
    created = CliRunner().invoke(app, ["produce", "ordres", str(lines), "--create"])
    assert created.exit_code == 0
    assert created.stderr == (
        "odradek: topic 'ordres' did not exist and was created with 1 partition; similar topics: 'orders'\n"
    )
    again = CliRunner().invoke(app, ["produce", "ordres", str(lines), "--create"])
    assert again.stderr == ""


async def test_a_producer_names_the_quota_that_limits_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first response says that the client is throttled; at the second one, its batch is still pending."""
    respond = Sender._on_response
    reasons: list[str] = []
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("in", partitions=1)
    async with cluster.client() as client, client.producer() as producer:

        def respond_throttled(
            sender: Sender, request: SentRequest, response: ProduceResponse
        ) -> None:
            reasons.append(producer.explain_waiting())
            response.throttle_time_ms = 500
            respond(sender, request, response)

        await client.connect(30)
        monkeypatch.setattr(Sender, "_on_response", respond_throttled)
        await producer.send_and_wait("in", b"within the quota")
        await producer.send_and_wait("in", b"beyond the quota")
    assert reasons == [
        "the leader of in-0 has not responded yet",
        "a producer quota limits the rate (`odradek quota list` shows quotas)",
    ]


def waits(caplog: pytest.LogCaptureFixture, what: str = "") -> list[str]:
    """Return the logged waits for `what`. On a busy machine, other calls take longer than WAIT_REPORT_S, too."""
    start = f"Waiting for {what}"
    return [record.message for record in caplog.records if record.message.startswith(start)]


async def test_a_send_without_any_reachable_broker_logs_why_it_waits_and_names_each_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.2)
    cluster = MemoryCluster(brokers=2)
    cluster.kill(1)
    cluster.kill(2)
    async with cluster.client() as client:
        with pytest.raises(BrokersUnavailable) as raised:
            await client.producer(max_block_ms=1500).send_and_wait("t", b"x")
    texts = waits(caplog, "the metadata of topic 't', for ")
    reasons = [text.partition(" s so far: ")[2] for text in texts]
    assert len(set(reasons)) == len(reasons), "a reason that does not change is logged once"
    assert all(reason.startswith("no broker") for reason in reasons)
    for text in (str(raised.value), reasons[-1]):
        for broker in (1, 2):
            assert f"memory-{broker}:9090 (connection refused)" in text
    assert sorted(raised.value.errors) == ["memory-1:9090", "memory-2:9090"]


async def test_a_record_that_is_not_acknowledged_because_all_brokers_died_logs_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.2)
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("t", 1)
    async with cluster.client() as client, client.producer(delivery_timeout_ms=1500) as producer:
        await producer.send_and_wait("t", b"x")
        cluster.kill(1, elect=False)
        cluster.kill(2, elect=False)
        with pytest.raises(DeliveryTimedOut) as raised:
            await producer.send_and_wait("t", b"y")
        texts = waits(caplog, "acknowledgements of records (1 pending), for ")
        for text in (str(raised.value), texts[-1]):
            assert "memory-1:9090 (connection refused)" in text
            assert "memory-2:9090 (connection refused)" in text


async def test_a_record_that_the_leader_refuses_for_a_while_logs_the_leaders_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.1)
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 5)
        await producer.send_and_wait("t", b"x")
        texts = waits(caplog, "acknowledgements of records (1 pending), for ")
        assert any("not enough replicas" in text for text in texts)
        caplog.clear()
        monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 60)
        await producer.send_and_wait("t", b"y")
        assert waits(caplog) == []


async def test_each_of_two_waits_is_logged_although_other_records_are_always_pending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.1)
    cluster = MemoryCluster(brokers=1)
    cluster.create_topic("t", 1)
    cluster.create_topic("steady", 1)
    async with cluster.client() as client, client.producer() as producer:
        has_ended = asyncio.Event()

        async def send_steadily() -> None:
            while not has_ended.is_set():
                await producer.send("steady", b"x")
                await asyncio.sleep(0)

        sending = asyncio.create_task(send_steadily())
        for _ in range(2):
            caplog.clear()
            cluster.fail_next("produce", "t", 0, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 5)
            await producer.send_and_wait("t", b"x")
            assert any("not enough replicas" in text for text in waits(caplog))
            async with asyncio.timeout(30):  # until the timer has seen that nothing waits
                while producer._reported_reason:  # noqa: ASYNC110 - the timer sets no event
                    await asyncio.sleep(0.01)
        has_ended.set()
        await sending


async def test_a_timeout_after_an_outage_does_not_blame_brokers_that_respond_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("t", 1)
    only_on_broker_1 = cluster.topics["t"].partitions[0]
    monkeypatch.setattr(only_on_broker_1, "replicas", [1])
    async with cluster.client() as client, client.producer(delivery_timeout_ms=4000) as producer:
        await producer.send_and_wait("t", b"x")
        cluster.kill(1)
        cluster.kill(2)
        waiting = await producer.send("t", b"y")
        (batch,) = producer._accumulator.pending_batches()
        async with asyncio.timeout(30):
            while not isinstance(batch.last_error, BrokersUnavailable):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        cluster.start(2)
        with pytest.raises(DeliveryTimedOut) as raised:
            await waiting
    assert "memory-2:9090" not in str(raised.value)


async def test_a_transaction_without_any_reachable_broker_logs_why_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.cluster.wait_report.WAIT_REPORT_S", 0.2)
    cluster = MemoryCluster(brokers=1)
    cluster.kill(1)
    async with cluster.client() as client:
        producer = client.producer(transactional_id="payments", max_block_ms=600)
        with pytest.raises(OdradekError, match=r"memory-1:9090 \(connection refused\)"):
            await producer.init()
    texts = waits(caplog, "the coordinator (taking over the transactional id 'payments'), for ")
    assert texts
    assert all(" s so far: no broker" in text for text in texts)
