"""The credit of a fetch stream: only bytes that were sent use credit, because the client grants only these again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from odradek_broker.access.quotas import Quotas
from odradek_broker.replication.outcomes import ReadOutcome
from odradek_broker.rpc.fetch_stream import FetchStream
from odradek_protocol.identity import Offset
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.metadata.image import MetadataImage
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_runtime.budget.client_budget import ClientBudget

CREDIT = 1_000
READ = 100


class Host:
    def __init__(self) -> None:
        self.watchers: dict[object, None] = {}


class OnePartition:
    """A partition each read of which finds READ bytes, unless this broker has lost its lease at the end."""

    def __init__(self) -> None:
        self.host = Host()
        self.has_lease = True

    def preferred_replica(self, _rack: str) -> None:
        return None

    def read(self, offset: int, **_: Any) -> ReadOutcome:
        return ReadOutcome(
            ErrorCode.NONE, [bytes(READ)], size_bytes=READ, next_offset=Offset(offset + 1)
        )

    def gate_read(self, outcome: ReadOutcome) -> ReadOutcome:
        return outcome if self.has_lease else ReadOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def opened(partition: OnePartition) -> tuple[FetchStream, list[bytes]]:
    """Return a stream that has read the partition once, and what it has sent."""
    sent: list[bytes] = []

    async def write(message: bytes) -> None:
        sent.append(message)

    partitions: Any = SimpleNamespace(
        find=lambda *_: partition,
        image=MetadataImage(),
        leader_of=lambda *_: SimpleNamespace(broker_id=2, leader_epoch=1),
    )
    caller: Any = SimpleNamespace(
        may=lambda *_: True,
        principal="User:a",
        client_id="a",
        listener="GRPC",
        pace=ClientBudget().turns.pace("a"),
    )
    context: Any = SimpleNamespace(write=write)
    stream = FetchStream(partitions, caller, Quotas(), context)
    request = pb.FetchRequest(credit_bytes=CREDIT)
    request.settings.message_bytes_max = 10 * READ
    request.add.add(topic="t", partition=0, end_offset=-1)
    await stream._take(request)
    await stream._gather()
    assert stream._gathered_bytes == READ
    return stream, sent


async def test_records_of_a_partition_that_was_removed_before_they_were_sent_use_no_credit() -> (
    None
):
    stream, sent = await opened(OnePartition())
    request = pb.FetchRequest()
    request.remove.add(topic="t", partition=0)
    request.add.add(topic="t", partition=0, end_offset=-1)
    await stream._take(request)  # the client has called seek
    await stream._gather()
    await stream._send()
    assert len(sent) == 1
    assert stream._credit_bytes == CREDIT - READ


@pytest.mark.parametrize("has_lease", [True, False])
async def test_records_that_may_not_be_sent_use_no_credit(has_lease: bool) -> None:
    partition = OnePartition()
    stream, sent = await opened(partition)
    partition.has_lease = has_lease
    await stream._send()
    assert len(sent) == 1
    assert stream._credit_bytes == CREDIT - READ * has_lease
