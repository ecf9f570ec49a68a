"""The example that copies records exactly once does so, with aborts between any two of its
steps.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from odradek import Client, GroupOptions, TopicPartition
from odradek.testing import MemoryCluster
from odradek_protocol.kafka.error_codes import ErrorCode

EXAMPLE = Path(__file__).parents[3] / "clients/python/examples/transactional_copy.py"
ORDERS = 250


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transactional_copy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def quantities(client: Client, cluster: MemoryCluster) -> list[int]:
    """Return what a read_committed reader finds in the output."""
    values: list[int] = []
    async with client.consumer(
        isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([("priced-orders", 0)])
        end = cluster.log("priced-orders").last_stable_offset
        while await consumer.position(("priced-orders", 0)) < end:
            values += [
                json.loads(record.value)["quantity"]
                for record in await consumer.getmany(timeout_ms=50)
            ]
    return values


async def test_each_order_is_copied_once_whatever_is_aborted(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = MemoryCluster()
    cluster.create_topic("orders", partitions=2)
    cluster.create_topic("priced-orders")
    source = TopicPartition("orders", 0), TopicPartition("orders", 1)
    cluster.fail_next("produce", "priced-orders", 0, ErrorCode.NONE, ErrorCode.INVALID_RECORD)
    cluster.fail_next_call(
        "CommitTransactionOffsets",
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.NOT_COORDINATOR,
    )
    ends = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
    cluster.fail_next_call("EndTransaction", *ends)
    options = GroupOptions(group="g", auto_commit=False)
    async with (
        cluster.client() as client,
        client.producer() as orders,
        client.consumer("orders", group=options, auto_offset_reset="earliest") as consumer,
        client.producer(transactional_id="copy", retry_backoff_ms=1) as producer,
    ):
        for number in range(ORDERS):
            value = json.dumps({"quantity": number}).encode()
            await orders.send("orders", value, partition=number % 2)
        await orders.flush()
        committed: dict[TopicPartition, int | None] = {}
        while sum(committed.get(name) or 0 for name in source) < ORDERS:
            await example.copy_some(consumer, producer, "priced-orders")
            committed = await consumer.committed(source)
        assert sorted(await quantities(client, cluster)) == list(range(ORDERS))
    assert capsys.readouterr().err.count("read again") >= 2
