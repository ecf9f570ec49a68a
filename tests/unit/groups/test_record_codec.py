"""Records of `__consumer_offsets` are encoded and decoded without loss, and damaged ones raise one
error.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.groups.formats.record_codec import decode, encode
from odradek_broker.groups.messages import CommittedOffset
from odradek_broker.groups.records import (
    ClassicGroupRecord,
    ClassicGroupState,
    ClassicMember,
    ConsumerMember,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentMemberRecord,
    GroupEpochRecord,
    GroupRecord,
    GroupTopicsRecord,
    OffsetCommitRecord,
    TargetEpochRecord,
    TargetMemberRecord,
    TopicSnapshot,
)
from odradek_protocol.identity import TopicPartition
from odradek_protocol.primitives import Malformed

names = st.text(min_size=1, max_size=20)
maybe = st.none() | names
int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
topic_ids = st.binary(min_size=16, max_size=16)
assignments = st.dictionaries(topic_ids, st.frozensets(int32, min_size=1, max_size=5), max_size=4)

RECORDS = st.one_of(
    st.builds(
        OffsetCommitRecord,
        group_id=names,
        partition=st.builds(TopicPartition, names, int32),
        committed=st.none()
        | st.builds(
            CommittedOffset,
            offset=int64,
            leader_epoch=st.integers(-1, 2**31 - 1),
            metadata=st.text(max_size=30),
            topic_id=topic_ids,
            commit_timestamp_ms=int64,
        ),
    ),
    st.builds(
        ClassicGroupRecord,
        group_id=names,
        state=st.none()
        | st.builds(
            ClassicGroupState,
            protocol_type=names,
            generation=int32,
            protocol=maybe,
            leader=maybe,
            state_timestamp_ms=int64,
            members=st.lists(
                st.builds(
                    ClassicMember,
                    member_id=names,
                    instance_id=maybe,
                    client_id=names,
                    client_host=names,
                    rebalance_timeout_ms=int32,
                    session_timeout_ms=int32,
                    subscription=st.binary(max_size=40),
                    assignment=st.binary(max_size=40),
                ),
                max_size=3,
            ).map(tuple),
        ),
    ),
    st.builds(GroupEpochRecord, group_id=names, epoch=st.none() | int32),
    st.builds(TargetEpochRecord, group_id=names, epoch=st.none() | int32),
    st.builds(
        GroupTopicsRecord,
        group_id=names,
        topics=st.none()
        | st.lists(
            st.builds(TopicSnapshot, topic_id=topic_ids, topic=names, partitions=int32), max_size=4
        ).map(tuple),
    ),
    st.builds(TargetMemberRecord, group_id=names, member_id=names, target=st.none() | assignments),
    st.builds(
        CurrentMemberRecord,
        group_id=names,
        member_id=names,
        current=st.none()
        | st.builds(
            CurrentAssignment,
            member_epoch=int32,
            previous_epoch=int32,
            state=st.integers(0, 2),
            assigned=assignments,
            pending_revocation=assignments,
        ),
    ),
    names.flatmap(
        lambda member_id: st.builds(
            ConsumerMemberRecord,
            group_id=names,
            member_id=st.just(member_id),
            member=st.none()
            | st.builds(
                ConsumerMember,
                member_id=st.just(member_id),
                instance_id=maybe,
                rack_id=maybe,
                client_id=names,
                client_host=names,
                subscribed_topics=st.lists(names, max_size=4).map(tuple),
                subscribed_regex=maybe,
                rebalance_timeout_ms=int32,
                server_assignor=maybe,
                principal=names,
            ),
        )
    ),
)


@given(RECORDS)
def test_a_record_survives_the_round_trip(record: GroupRecord) -> None:
    assert decode(*encode(record)) == record


@given(RECORDS, st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_damaged_bytes_give_one_error_or_another_record(
    record: GroupRecord, position: int, byte: int, cut: bool
) -> None:
    key, value = encode(record)
    if value is None:
        return
    position %= len(value)
    damaged = value[:position] if cut else value[:position] + bytes([byte]) + value[position + 1 :]
    with contextlib.suppress(Malformed):
        decode(key, damaged)


def test_an_unknown_type_is_skipped() -> None:
    assert decode(b"\x00\x63\x00\x01g", b"\x00\x00") is None


def test_an_offset_commit_has_the_bytes_that_kafka_writes() -> None:
    record = OffsetCommitRecord(
        group_id="g",
        partition=TopicPartition("t", 7),
        committed=CommittedOffset(
            offset=5, leader_epoch=2, metadata="m", topic_id=b"i" * 16, commit_timestamp_ms=9
        ),
    )
    key, value = encode(record)
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x07"
    assert value == (
        b"\x00\x04"
        + (5).to_bytes(8, "big")
        + (2).to_bytes(4, "big")
        + b"\x02m"
        + (9).to_bytes(8, "big")
        + b"\x01\x00\x10"  # one tag, number 0, 16 bytes
        + b"i" * 16
    )


def test_an_offset_commit_of_before_topic_ids_is_read() -> None:
    value = (
        b"\x00\x03"
        + (5).to_bytes(8, "big")
        + (2).to_bytes(4, "big")
        + b"\x00\x01m"
        + (9).to_bytes(8, "big")
    )
    record = decode(b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x07", value)
    assert record == OffsetCommitRecord(
        group_id="g",
        partition=TopicPartition("t", 7),
        committed=CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=9),
    )


def test_an_old_value_with_its_own_expiry_is_kept() -> None:
    committed = CommittedOffset(
        offset=1, metadata="", commit_timestamp_ms=5, expire_timestamp_ms=10
    )
    record = OffsetCommitRecord(group_id="g", partition=TopicPartition("t", 0), committed=committed)
    assert decode(*encode(record)) == record


def test_a_newer_group_record_is_refused() -> None:
    record = ClassicGroupRecord(
        group_id="g",
        state=ClassicGroupState(
            protocol_type="consumer",
            generation=1,
            protocol=None,
            leader=None,
            state_timestamp_ms=0,
            members=(),
        ),
    )
    key, value = encode(record)
    assert value is not None
    with pytest.raises(Malformed, match="newer release"):
        decode(key, b"\x00\x09" + value[2:])
