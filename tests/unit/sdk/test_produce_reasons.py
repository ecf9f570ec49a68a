"""`odradek produce` says why records are not acknowledged, and why it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from odradek.cli import connection
from odradek.cli.main import app
from odradek.producer.sender import Sender, SentRequest
from odradek.testing import MemoryCluster
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
