"""No Kafka request blocks a broker's event loop for long without a pause, even with the largest number of items.

The tests send the largest request that the decoder accepts: for every API in its newest version,
one request for each array. The broker process measures the CPU time of each callback of its event
loop. The time of Python's garbage collector is printed and not counted, because it is not the fault
of this request. A request that takes too long has two more attempts, since CPU time grows when
another process shares the core's caches. Creations are only validated; a second test creates a
topic of thousands of partitions, and a group of hundreds of members.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ITEMS_MAX, SUPPORTED, ApiKey
from odradek_protocol.kafka.response_encoding import encode_message
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.watched_broker import HELD_FILE
from tests.unit.kafka.largest_requests import LargeRequest, largest_requests
from tests.unit.kafka.requests_to_everything import HIGHEST

HELD_S_MAX: Final = 0.020
PARTITIONS: Final = 1000
_PING: Final = LargeRequest(ApiKey.API_VERSIONS, 0, "", b"")
_FIND_GROUP: Final = LargeRequest(ApiKey.FIND_COORDINATOR, 0, "", b"\0\5group")
ATTEMPTS_MAX: Final = 3
WATCHED: Final = "tests.integration.broker.watched_broker"
KAFKA_LISTENER: Final = {
    "listeners": "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0,KAFKA://127.0.0.1:0"
}


@pytest.mark.parametrize(
    "count",
    [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)],
)
@pytest.mark.timeout(900)
async def test_no_request_keeps_the_loop_for_long(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv(HELD_FILE, str(held))
    async with BrokerCluster(tmp_path, module=WATCHED, settings=KAFKA_LISTENER) as cluster:
        await cluster.create_topic("orders", partitions=PARTITIONS)
        await cluster.disable_topic_creation()
        broker = cluster.brokers[1]
        too_long: list[str] = []
        await _asked(broker.ports["KAFKA"], _FIND_GROUP)  # creates the topic of offsets
        for request in largest_requests(count=count):
            for _ in range(ATTEMPTS_MAX):
                worst, what = await _held_by(broker.ports["KAFKA"], request, held)
                if worst <= HELD_S_MAX:
                    break
            else:
                too_long.append(f"{request.name}: {worst} s in {what}")
        assert "Request failed" not in broker.log_path.read_text()
        assert not too_long, "\n".join(too_long)


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
async def test_no_large_topic_and_no_large_group_keeps_the_loop_for_long(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of `count` partitions is created, described and deleted; `count / 10` members join a
    group.
    """
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv(HELD_FILE, str(held))
    async with BrokerCluster(tmp_path, module=WATCHED, settings=KAFKA_LISTENER) as cluster:
        await cluster.create_topic("orders", partitions=count // 10)
        broker = cluster.brokers[1]
        await _asked(broker.ports["KAFKA"], _FIND_GROUP)  # creates the topic of offsets
        too_long: list[str] = []
        for request in _large_topic(count):
            worst, what = await _held_by(broker.ports["KAFKA"], request, held)
            if worst > HELD_S_MAX:
                too_long.append(f"{request.name}: {worst} s in {what}")
        lacking = 0
        for request in _large_group(count // 10):
            worst, what = await _held_by(broker.ports["KAFKA"], request, held)
            lacking = lacking + 1 if worst > HELD_S_MAX else 0
            if lacking == ATTEMPTS_MAX:  # one join after the other costs as much
                too_long.append(f"{request.name}: {worst} s in {what}")
        assert "Request failed" not in broker.log_path.read_text()
        assert not too_long, "\n".join(too_long)


def _large_topic(count: int) -> Iterator[LargeRequest]:
    topic = messages.CreateTopicsRequest.CreatableTopic(
        name="wide", num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    yield _request(
        messages.CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    )
    wide = messages.MetadataRequest.MetadataRequestTopic(name="wide")
    yield _request(messages.MetadataRequest(topics=[wide]))
    yield _request(
        messages.DescribeTopicPartitionsRequest(
            topics=[messages.DescribeTopicPartitionsRequest.TopicRequest(name="wide")],
            response_partition_limit=count,
        )
    )
    name = messages.DeleteTopicsRequest.DeleteTopicState(name="wide")
    yield _request(messages.DeleteTopicsRequest(topics=[name], timeout_ms=60_000))


def _large_group(members: int) -> Iterator[LargeRequest]:
    for number in range(members):
        yield _request(
            messages.ConsumerGroupHeartbeatRequest(
                group_id="crowd",
                member_id=f"member-{number:05}",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["orders"],
                topic_partitions=[],
            ),
            version=0,
        )


def _request(message: Any, version: int | None = None) -> LargeRequest:
    key = ApiKey(message.API_KEY)
    version = HIGHEST[key] if version is None else version
    return LargeRequest(key, version, "", bytes(encode_message(message, version)))


async def _held_by(port: int, request: LargeRequest, held: Path) -> tuple[float, str]:
    """Send a request; return the longest time for which it blocked the event loop, and the function
    that ran.
    """
    before = len(_lines(held))
    outcome = await _asked(port, request)
    await _asked(port, _PING)  # the callback that responded has ended
    worst, collecting, what = _worst(_lines(held)[before:])
    print(
        f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {outcome:>11}"
        f"  {request.name}  {what[:200]}"
    )
    return worst, what


def _lines(held: Path) -> str:
    return held.read_text()


def _worst(lines: str) -> tuple[float, float, str]:
    """Return the longest piece without the garbage collector's time, the longest such time, and the
    function that ran.
    """
    worst, most, what = 0.0, 0.0, ""
    for line in lines.splitlines():
        seconds, collecting, ran = line.split("\t")
        most = max(most, float(collecting))
        if float(seconds) - float(collecting) > worst:
            worst, what = float(seconds) - float(collecting), ran
    return worst, most, what


async def _asked(port: int, request: LargeRequest) -> str:
    """Send a request on a new connection, and wait for its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    flexible = request.version >= SUPPORTED[request.key].flexible
    header = struct.pack(">hhih", request.key, request.version, 1, 2) + b"me" + b"\0" * flexible
    content = header + request.body
    writer.write(struct.pack(">i", len(content)) + content)
    try:
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            return f"{size} B"
    except asyncio.IncompleteReadError:
        return "closed"
    finally:
        writer.close()
