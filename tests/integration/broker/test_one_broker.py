"""One broker process: requests over gRPC, and the responses to invalid ones."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.batch_header import iter_headers
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin_pb
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc as admin_grpc
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from tests.integration.broker.broker_cluster import (
    BrokerCluster,
    batch,
    produce_request,
    record_count,
    record_values,
)
from tests.unit.log.material import unreadable

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one broker process for all of them
_names = itertools.count(1)
WAIT_S_MAX = 60.0  # so high that a slow machine does not exceed it


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(tmp_path_factory.mktemp("one"), brokers=1) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def topic(cluster: BrokerCluster) -> str:
    """Create a new topic for each test."""
    name = f"topic-{next(_names)}"
    await cluster.create_topic(name)
    return name


def _numbers(start: int, count: int) -> bytes:
    return batch([str(n).encode() for n in range(start, start + count)])


async def _list_offset(cluster: BrokerCluster, topic: str, timestamp_ms: int) -> Any:
    answer = await cluster.broker_stub(1).ListOffsets(
        pb.ListOffsetsRequest(
            partitions=[
                pb.ListOffsetsPartition(
                    topic=topic, timestamp_ms=timestamp_ms, current_leader_epoch=-1
                )
            ]
        )
    )
    return answer.partitions[0]


async def test_what_was_produced_is_fetched(cluster: BrokerCluster, topic: str) -> None:
    offsets = [
        (await cluster.produce(topic, _numbers(start, 10), acks=acks)).base_offset
        for start, acks in ((0, 1), (10, -1), (20, 1))
    ]
    assert offsets == [0, 10, 20]
    assert record_values(await cluster.read(topic, end=30)) == list(range(30))


async def test_several_batches_in_one_request_get_offsets_in_a_row(
    cluster: BrokerCluster, topic: str
) -> None:
    await cluster.produce(topic, _numbers(0, 3) + _numbers(3, 4))
    found = await cluster.read(topic, end=7)
    assert [h.base_offset for _, h in iter_headers(found)] == [0, 3]
    assert record_values(found) == list(range(7))


async def test_unacknowledged_produce_is_stored_without_an_answer(
    cluster: BrokerCluster, topic: str
) -> None:
    call = cluster.broker_stub(1).Produce()
    await call.write(produce_request(topic, _numbers(0, 5), acks=0, n=1))
    await call.write(produce_request(topic, _numbers(5, 5), acks=1, n=2))
    answer = await call.read()
    assert answer.request_id == 2
    assert answer.partitions[0].base_offset == 5
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_fetch_stream_waits_for_records_to_come(cluster: BrokerCluster, topic: str) -> None:
    call = cluster.broker_stub(1).Fetch()
    await call.write(
        pb.FetchRequest(
            settings=pb.FetchSettings(),
            credit_bytes=1 << 20,
            add=[
                pb.FetchPartition(
                    topic=topic, offset=0, end_offset=-1, current_leader_epoch=-1, fetch_id=9
                )
            ],
        )
    )
    reading = asyncio.ensure_future(call.read())
    await cluster.produce(topic, _numbers(0, 5))
    answer = await asyncio.wait_for(reading, WAIT_S_MAX)
    assert record_values(answer.partitions[0].records) == list(range(5))
    assert answer.partitions[0].next_offset == 5
    assert answer.partitions[0].fetch_id == 9
    call.cancel()


async def test_a_fetch_stream_stops_when_the_credit_is_used_up(
    cluster: BrokerCluster, topic: str
) -> None:
    value = b"1" * 1000
    for _ in range(8):
        await cluster.produce(topic, batch([value]))
    call = cluster.broker_stub(1).Fetch()
    await call.write(
        pb.FetchRequest(
            settings=pb.FetchSettings(message_bytes_max=1),
            credit_bytes=2500,
            add=[pb.FetchPartition(topic=topic, offset=0, end_offset=-1, current_leader_epoch=-1)],
        )
    )
    got = 0
    while got < 2500:
        answer = await asyncio.wait_for(call.read(), WAIT_S_MAX)
        got += len(answer.partitions[0].records)
    assert got < 4000
    await call.write(pb.FetchRequest(credit_bytes=1_000))
    answer = await asyncio.wait_for(call.read(), WAIT_S_MAX)
    assert answer.partitions[0].records
    call.cancel()


async def test_a_bounded_fetch_waits_for_the_bytes_it_wants(
    cluster: BrokerCluster, topic: str
) -> None:
    both = _numbers(0, 5), _numbers(5, 5)
    call = cluster.broker_stub(1).Fetch()
    await call.write(_bounded_fetch(topic, bytes_min=len(both[0]) + 1, wait_ms_max=600_000))
    reading = asyncio.ensure_future(call.read())
    for records in both:
        await cluster.produce(topic, records)
    answer = await asyncio.wait_for(reading, WAIT_S_MAX)
    assert record_values(_records(answer)) == list(range(10))
    call.cancel()


async def test_a_bounded_fetch_ends_without_the_bytes_it_wants(
    cluster: BrokerCluster, topic: str
) -> None:
    await cluster.produce(topic, _numbers(0, 5))
    call = cluster.broker_stub(1).Fetch()
    await call.write(_bounded_fetch(topic, bytes_min=1_000_000, wait_ms_max=300))
    answer = await asyncio.wait_for(call.read(), WAIT_S_MAX)
    assert record_values(_records(answer)) == list(range(5))
    call.cancel()


def _bounded_fetch(topic: str, *, bytes_min: int, wait_ms_max: int) -> pb.FetchRequest:
    return pb.FetchRequest(
        settings=pb.FetchSettings(bytes_min=bytes_min, wait_ms_max=wait_ms_max),
        credit_bytes=1 << 22,
        add=[pb.FetchPartition(topic=topic, offset=0, end_offset=-1, current_leader_epoch=-1)],
    )


def _records(answer: Any) -> bytes:
    return b"".join(one.records for one in answer.partitions)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda b: b[:40], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b"", ErrorCode.CORRUPT_MESSAGE),
        (lambda b: batch([b"x" * 2_000_000]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_what_is_no_batch_is_refused_and_not_stored(
    cluster: BrokerCluster, topic: str, damage: Any, code: ErrorCode
) -> None:
    result = await cluster.produce(topic, damage(_numbers(0, 3)))
    assert ErrorCode(result.error_code) is code
    assert result.error_message
    assert (await cluster.produce(topic, _numbers(0, 1))).base_offset == 0


async def test_unknown_names_and_acks_are_refused(cluster: BrokerCluster, topic: str) -> None:
    unknown = await cluster.produce("nowhere", _numbers(0, 1), via=1)
    assert ErrorCode(unknown.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    beyond = await cluster.produce(topic, _numbers(0, 1), partition=5, via=1)
    assert ErrorCode(beyond.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    acks = await cluster.produce(topic, _numbers(0, 1), acks=2)
    assert ErrorCode(acks.error_code) is ErrorCode.INVALID_REQUIRED_ACKS


async def test_a_repeat_of_an_idempotent_batch_is_stored_once(
    cluster: BrokerCluster, topic: str
) -> None:
    granted = await cluster.broker_stub(1).InitProducerId(pb.InitProducerIdRequest())
    assert granted.error_code == 0

    def numbered(sequence: int) -> bytes:
        builder = BatchBuilder()
        builder.append(None, str(sequence).encode(), None, 1)
        return builder.build(
            producer_id=granted.producer_id,
            producer_epoch=granted.producer_epoch,
            base_sequence=sequence,
        )

    first = await cluster.produce(topic, numbered(0))
    again = await cluster.produce(topic, numbered(0))
    gap = await cluster.produce(topic, numbered(5))
    second = await cluster.produce(topic, numbered(1))
    assert (first.base_offset, again.base_offset, second.base_offset) == (0, 0, 1)
    assert ErrorCode(gap.error_code) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert record_count(await cluster.read(topic, end=2)) == 2


async def test_offsets_are_listed_by_end_and_by_time(cluster: BrokerCluster, topic: str) -> None:
    for ms in (1000, 2000, 3000):
        builder = BatchBuilder()
        builder.append(None, b"v", None, ms)
        await cluster.produce(topic, builder.build())
    assert (await _list_offset(cluster, topic, -2)).offset == 0
    assert (await _list_offset(cluster, topic, -1)).offset == 3
    found = await _list_offset(cluster, topic, 1500)
    assert (found.offset, found.timestamp_ms) == (1, 2000)
    assert (await _list_offset(cluster, topic, 9000)).offset == -1
    assert (await _list_offset(cluster, topic, -3)).offset == 2


async def test_a_batch_that_nobody_can_read_does_not_end_who_looks_into_it(
    cluster: BrokerCluster, topic: str
) -> None:
    assert (await cluster.produce(topic, unreadable(0, "noise"))).error_code == 0
    await cluster.produce(topic, _numbers(0, 1))
    assert (await _list_offset(cluster, topic, 1)).offset == 0
    assert (await _list_offset(cluster, topic, 1001)).offset == 0
    assert (await cluster.produce(topic, _numbers(1, 1))).error_code == 0


async def test_deleted_records_are_out_of_range(cluster: BrokerCluster, topic: str) -> None:
    await cluster.produce(topic, _numbers(0, 5))
    await cluster.produce(topic, _numbers(5, 5))
    admin = admin_grpc.AdminServiceStub(cluster.channel(1))
    answer = await admin.DeleteRecords(
        admin_pb.DeleteRecordsRequest(
            partitions=[admin_pb.PartitionOffset(partition={"topic": topic}, offset=5)]
        )
    )
    assert (answer.partitions[0].error_code, answer.partitions[0].offset) == (0, 5)
    assert (await _list_offset(cluster, topic, -2)).offset == 5
    assert record_values(await cluster.read(topic, start=5, end=10)) == list(range(5, 10))
    call = cluster.broker_stub(1).Fetch()
    await call.write(
        pb.FetchRequest(
            credit_bytes=100,
            add=[pb.FetchPartition(topic=topic, offset=2, end_offset=-1, current_leader_epoch=-1)],
        )
    )
    told = await asyncio.wait_for(call.read(), WAIT_S_MAX)
    assert ErrorCode(told.partitions[0].error_code) is ErrorCode.OFFSET_OUT_OF_RANGE
    call.cancel()


async def test_log_append_time_topics_carry_the_brokers_clock(
    cluster: BrokerCluster, topic: str
) -> None:
    await cluster.create_topic("stamped", message_timestamp_type="LogAppendTime")
    result = await cluster.produce("stamped", _numbers(0, 3))
    assert result.log_append_time_ms > 1_600_000_000_000
    found = await cluster.read("stamped", end=3)
    assert record_values(found) == [0, 1, 2]  # the CRC is right
    ((_, header),) = iter_headers(found)
    assert header.max_timestamp_ms == result.log_append_time_ms


async def test_a_deleted_topic_is_unknown_and_its_namesake_begins_anew(
    cluster: BrokerCluster, topic: str
) -> None:
    await cluster.produce(topic, _numbers(0, 5))
    admin = admin_grpc.AdminServiceStub(cluster.channel(1))
    await admin.DeleteTopics(admin_pb.DeleteTopicsRequest(names=[topic]))
    async for news in cluster.broker_stub(1).WatchMetadata(
        pb.WatchMetadataRequest(all_topics=True)
    ):
        if not any(one.name == topic for one in news.metadata.topics) or news.removed_topics:
            break
    gone = await cluster.produce(topic, _numbers(0, 1), via=1)
    assert ErrorCode(gone.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await cluster.create_topic(topic)
    assert (await cluster.produce(topic, _numbers(0, 1))).base_offset == 0


async def test_asking_for_a_missing_topic_creates_it_where_that_is_allowed(
    cluster: BrokerCluster, topic: str
) -> None:
    answer = await cluster.broker_stub(1).Metadata(
        pb.MetadataRequest(topics=["new"], allow_auto_topic_creation=True)
    )
    assert answer.topics[0].error_code == 0
    assert len(answer.topics[0].partitions) == 1
    unasked = await cluster.broker_stub(1).Metadata(pb.MetadataRequest(topics=["other"]))
    assert unasked.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_clients_over_their_quota_are_told_to_wait_and_do(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("t")
        admin = admin_grpc.AdminServiceStub(cluster.channel(1))
        answer = await admin.AlterQuotas(
            admin_pb.AlterQuotasRequest(
                entries=[
                    {"entity": [{"type": "user"}], "key": key, "value": 10_000.0}
                    for key in ("producer_byte_rate", "consumer_byte_rate")
                ]
            )
        )
        assert [one.error_code for one in answer.results] == [0, 0]
        call = cluster.broker_stub(1).Produce()
        throttled: list[int] = []
        began = time.monotonic()
        for number in range(5):  # 10 s of the rate are free, as a burst
            await call.write(produce_request("t", batch([b"1" * 25_000]), n=number))
            throttled.append((await call.read()).throttle_time_ms)
        assert throttled[0] == 0
        assert throttled[-1] > 1000
        assert time.monotonic() - began > throttled[-2] / 1000
        call.cancel()


async def test_records_survive_restarts(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("t")
        for round_number, how in enumerate(("kill", "terminate", "kill")):
            start = 100 * round_number
            assert (await cluster.produce("t", _numbers(start, 100))).base_offset == start
            await getattr(cluster.brokers[1], how)()
            await cluster.brokers[1].start()
            await cluster.until(lambda: cluster.partition("t").leader == 1)
        assert record_values(await cluster.read("t", end=300)) == list(range(300))


async def test_metrics_and_health_are_told(tmp_path: Path) -> None:
    async with BrokerCluster(tmp_path, brokers=1) as cluster:
        await cluster.create_topic("t")
        await cluster.produce("t", _numbers(0, 7))
        port = cluster.brokers[1].ports["METRICS"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
    assert "odradek_broker_records_produced_total 7.0" in text
    assert 'odradek_broker_log_end_offset{partition="0",topic="t"} 7.0' in text
    assert "odradek_broker_partitions_under_min_isr 0.0" in text
    assert "odradek_broker_produce_latency_seconds_count 1.0" in text
