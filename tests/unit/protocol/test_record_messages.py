"""Messages that are encoded and decoded by hand agree with protobuf's own codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_protocol.kafka.request_decoding import all_steps
from odradek_protocol.record_messages import (
    FetchResponseBytes,
    ReplicateResponseBytes,
    WireError,
    produce_request_steps,
    read_replicate_response,
    varint,
)
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import replication_service_pb2 as replication_pb

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_PARTS = st.lists(
    st.tuples(st.text(max_size=20), st.sampled_from([b"", bytes(range(16))]), _INT32, st.binary()),
    max_size=4,
)


@given(request_id=_INT64, acks=_INT32, timeout_ms=_INT32, parts=_PARTS)
def test_a_produce_request_is_read_as_protobuf_wrote_it(
    request_id: int, acks: int, timeout_ms: int, parts: list[tuple[str, bytes, int, bytes]]
) -> None:
    request = pb.ProduceRequest(
        request_id=request_id,
        acks=acks,
        timeout_ms=timeout_ms,
        partitions=[
            pb.ProducePartition(topic=t, topic_id=i, partition=p, records=r) for t, i, p, r in parts
        ],
    )
    found = all_steps(produce_request_steps(request.SerializeToString()))
    assert (found.request_id, found.acks, found.timeout_ms) == (request_id, acks, timeout_ms)
    assert [(o.topic, o.topic_id, o.partition, bytes(o.records)) for o in found.partitions] == parts


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        mine = all_steps(produce_request_steps(data))
    except WireError:
        return
    assert mine.size_bytes == len(data)


@given(data=st.binary(min_size=1, max_size=50), cut=st.integers(1, 49))
def test_a_cut_request_is_refused_or_shorter(data: bytes, cut: int) -> None:
    whole = pb.ProduceRequest(
        request_id=1, partitions=[pb.ProducePartition(topic="t", records=data)]
    ).SerializeToString()
    with pytest.raises(WireError):
        all_steps(produce_request_steps(whole[: len(whole) - min(cut, len(data))]))


@given(value=st.integers(0, 2**40))
def test_varints_are_those_of_protobuf(value: int) -> None:
    assert b"\x08" + varint(value) == (
        pb.ProduceRequest(request_id=value).SerializeToString() or b"\x08\x00"
    )


@given(records=st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=3))
def test_a_fetch_response_is_read_by_protobuf(records: list[list[bytes]]) -> None:
    built = FetchResponseBytes()
    for number, slices in enumerate(records):
        data = pb.FetchPartitionData(topic="t", partition=number, next_offset=7)
        built.add(data, [memoryview(one) for one in slices], sum(map(len, slices)))
    found = pb.FetchResponse.FromString(built.encode())
    assert [one.records for one in found.partitions] == [b"".join(one) for one in records]
    assert [one.partition for one in found.partitions] == list(range(len(records)))


@given(slices=st.lists(st.binary(max_size=40), max_size=3))
def test_a_replicate_response_is_read_by_protobuf(slices: list[bytes]) -> None:
    named = replication_pb.LeaderMessage(leader_epoch=5)
    named.partition.topic_id = bytes(16)
    attached = replication_pb.LeaderMessage(leader_epoch=6)
    attached.attached.attach_seq = 9
    built = ReplicateResponseBytes()
    assert built.is_empty
    built.add(attached)
    data = replication_pb.LeaderData(base_offset=3, high_watermark=2)
    built.add_data(named, data, slices, sum(map(len, slices)))
    first, second = replication_pb.ReplicateResponse.FromString(built.encode()).messages
    assert first == attached
    assert second.WhichOneof("message") == "data"
    assert (second.leader_epoch, second.data.base_offset) == (5, 3)
    assert second.data.records == b"".join(slices)


@given(
    parts=st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), _INT32, _INT32, _INT64, st.binary()),
        max_size=4,
    )
)
def test_what_a_leader_pushed_is_read_as_protobuf_wrote_it(
    parts: list[tuple[bytes, int, int, int, bytes]],
) -> None:
    response = replication_pb.ReplicateResponse()
    for topic_id, index, epoch, offset, records in parts:
        message = response.messages.add(leader_epoch=epoch)
        message.partition.topic_id = topic_id
        message.partition.partition = index
        message.data.base_offset = offset
        message.data.records = records
        refused = response.messages.add(leader_epoch=epoch)
        refused.refused.error_code = 6
    found = read_replicate_response(response.SerializeToString())
    assert len(found) == len(response.messages)
    for mine, theirs in zip(found, response.messages, strict=True):
        assert mine.leader_epoch == theirs.leader_epoch
        assert mine.topic_id == theirs.partition.topic_id
        assert mine.partition == theirs.partition.partition
        if theirs.HasField("data"):
            assert mine.data is not None
            assert mine.data.base_offset == theirs.data.base_offset
            assert bytes(mine.data.records) == theirs.data.records
        else:
            assert mine.other == theirs


@given(data=st.binary(max_size=200))
def test_any_bytes_from_a_leader_are_read_or_refused(data: bytes) -> None:
    try:
        read_replicate_response(data)
    except WireError:
        return
