"""No transaction blocks a broker's event loop for long without a pause, however many partitions and
offsets it has.

One transaction writes thousands of partitions and commits thousands of offsets, and thousands of
transactional ids are listed and described. The broker process measures the CPU time of each
callback of its event loop.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any, Final

import pytest

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import SUPPORTED, ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.response_encoding import encode_message
from odradek_protocol.rpc.v1 import transaction_service_pb2 as pb
from odradek_protocol.rpc.v1 import transaction_service_pb2_grpc
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.test_loop_held import (
    ATTEMPTS_MAX,
    HELD_S_MAX,
    KAFKA_LISTENER,
    WATCHED,
    _lines,
    _worst,
)
from tests.integration.broker.watched_broker import HELD_FILE
from tests.unit.kafka.requests_to_everything import HIGHEST

IN_FLIGHT: Final = 5
ADDED_BY_CLIENTS: Final = 3
"""The version of AddPartitionsToTxn that clients send; later ones are for brokers."""
GROUP: Final = "group"
TRANSACTION: Final = 1
_Added: Final = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_Offsets: Final = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_Offset: Final = _Offsets.TxnOffsetCommitRequestPartition


class Connection:
    """A Kafka client's connection to a broker whose event loop is measured."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: Path
    ) -> None:
        self._reader, self._writer, self._held = reader, writer, held

    def send(self, message: Any, version: int) -> None:
        key = ApiKey(message.API_KEY)
        header = struct.pack(">hhih", key, version, 1, 2) + b"me"
        header += b"\0" * (version >= SUPPORTED[key].flexible)
        content = header + bytes(encode_message(message, version))
        self._writer.write(struct.pack(">i", len(content)) + content)

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def ask(self, message: Any, version: int) -> bytes:
        self.send(message, version)
        async with asyncio.timeout(60):
            return await self.receive()

    async def held_by(self, name: str, message: Any, version: int) -> str:
        """Send a request; return what blocked the event loop for too long in every attempt, or an
        empty text.
        """
        for _ in range(ATTEMPTS_MAX):
            before = len(_lines(self._held))
            response = await self.ask(message, version)
            await self.ask(
                messages.ApiVersionsRequest(), 0
            )  # the callback that responded has ended
            worst, collecting, what = _worst(_lines(self._held)[before:])
            print(
                f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {len(response):>9} B"
                f" {response[4:14].hex()}  {name}  {what[:200]}",
                flush=True,
            )
            if worst <= HELD_S_MAX:
                return ""
        return f"{name}: {worst} s in {what}"


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
async def test_no_transaction_keeps_the_loop_for_long(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv(HELD_FILE, str(held))
    async with BrokerCluster(tmp_path, module=WATCHED, settings=KAFKA_LISTENER) as cluster:
        broker = cluster.brokers[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", broker.ports["KAFKA"], limit=1 << 26
        )
        client = Connection(reader, writer, held)
        producer = await _initialized(client, "id-0")
        await _many_ids(client, count)
        await cluster.create_topic("wide", partitions=count)
        too_long: list[str] = []
        for _ in range(2):  # the second one meets what the first has left
            for name, message, version in _transaction(producer, count):
                too_long.append(await client.held_by(name, message, version))
        await _initialized(client, "id-0")
        ids = [f"id-{number}" for number in range(count)]
        for message in (
            messages.ListTransactionsRequest(state_filters=[], producer_id_filters=[]),
            messages.DescribeTransactionsRequest(transactional_ids=ids[: count - 9]),
        ):
            version = HIGHEST[ApiKey(message.API_KEY)]
            too_long.append(await client.held_by(type(message).__name__, message, version))
        before = len(_lines(held))
        stub: Any = transaction_service_pb2_grpc.TransactionServiceStub(cluster.channel(1))
        listed = await stub.ListTransactions(pb.ListTransactionsRequest(), timeout=60)
        assert len(listed.transactions) == count
        worst, _, what = _worst(_lines(held)[before:])
        if worst > HELD_S_MAX:
            too_long.append(f"gRPC ListTransactions: {worst} s in {what}")
        writer.close()
        assert "Request failed" not in broker.log_path.read_text()
    assert not any(too_long), "\n".join(too_long)


async def _initialized(client: Connection, transactional_id: str) -> tuple[int, int]:
    """Send InitProducerId; return the producer id and epoch."""
    find = messages.FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
    await client.ask(find, 2)  # creates the coordinator's topic
    while True:
        response = await client.ask(_init(transactional_id), 1)
        error, producer_id, epoch = struct.unpack_from(">hqh", response, 8)
        if error == 0:
            return producer_id, epoch
        assert ErrorCode(error).retriable, ErrorCode(error)
        await asyncio.sleep(0.05)


async def _many_ids(client: Connection, count: int) -> None:
    for start in range(1, count, IN_FLIGHT):
        numbers = range(start, min(start + IN_FLIGHT, count))
        for number in numbers:
            client.send(_init(f"id-{number}"), 1)
        for number in numbers:
            if struct.unpack_from(">h", await client.receive(), 8)[0]:
                await _initialized(client, f"id-{number}")


def _init(transactional_id: str) -> Any:
    return messages.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=600_000
    )


def _transaction(producer: tuple[int, int], count: int) -> list[tuple[str, Any, int]]:
    """Return the requests of one transaction."""
    producer_id, epoch = producer
    wide = _Added(name="wide", partitions=list(range(count - 9)))
    add = messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="id-0",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[wide],
    )
    common = {"transactional_id": "id-0", "producer_id": producer_id, "producer_epoch": epoch}
    offsets = [
        _Offset(partition_index=index, committed_offset=7, committed_leader_epoch=-1)
        for index in range(count - 9)
    ]
    commit = messages.TxnOffsetCommitRequest(
        **common,
        group_id=GROUP,
        generation_id=-1,
        member_id="",
        topics=[_Offsets(name="wide", partitions=offsets)],
    )
    return [
        ("AddPartitionsToTxn", add, ADDED_BY_CLIENTS),
        ("AddOffsetsToTxn", messages.AddOffsetsToTxnRequest(**common, group_id=GROUP), 3),
        ("TxnOffsetCommit", commit, 4),
        (
            "DescribeTransactions",
            messages.DescribeTransactionsRequest(transactional_ids=["id-0"]),
            0,
        ),
        ("EndTxn", messages.EndTxnRequest(**common, committed=True), 3),
    ]
