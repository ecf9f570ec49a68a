"""The records of `__transaction_state` have Kafka's format, byte for byte; our fields are tagged
ones that Kafka skips.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from odradek_broker.transactions.transaction import (
    EndedBy,
    Ledger,
    Outcome,
    Staged,
    Transaction,
    TransactionPartition,
    TransactionRecord,
    TransactionStatus,
)
from odradek_broker.transactions.transaction_codec import decode, encode
from odradek_protocol.identity import (
    NO_TOPIC_ID,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicName,
)
from odradek_protocol.primitives import Malformed
from tests.unit.transactions.coordinator import ORDERS, identity

KEY = bytes.fromhex("000000086f72646572732d31")
EMPTY = Transaction(
    producer_id=ProducerId(4000),
    producer_epoch=ProducerEpoch(7),
    timeout_ms=60_000,
    update_ms=1_700_000_000_123,
)
PREPARED = Transaction(
    producer_id=ProducerId(4000),
    producer_epoch=ProducerEpoch(32_767),
    previous_id=ProducerId(3999),
    next_id=ProducerId(4001),
    timeout_ms=60_000,
    status=TransactionStatus.PREPARE_COMMIT,
    partitions=frozenset(
        TransactionPartition(NO_TOPIC_ID, TopicName(topic), PartitionIndex(index))
        for topic, index in (("in", 0), ("in", 3), ("out", 1))
    ),
    update_ms=1_700_000_000_123,
    start_ms=1_700_000_000_100,
    client_version=2,
)
# Made by Kafka 4.4's TransactionLogValue, with the fields of EMPTY and PREPARED.
EMPTY_0 = "00000000000000000fa000070000ea6000ffffffff0000018bcfe5687bffffffffffffffff"
EMPTY_1 = "00010000000000000fa000070000ea6000000000018bcfe5687bffffffffffffffff00"
PREPARED_0 = (
    "00000000000000000fa07fff0000ea6002000000020002696e00000002000000000000000300036f7574"
    "00000001000000010000018bcfe5687b0000018bcfe56864"
)
PREPARED_1 = (
    "00010000000000000fa07fff0000ea60020303696e03000000000000000300046f75740200000001000000"
    "018bcfe5687b0000018bcfe568640300080000000000000f9f01080000000000000fa102020002"
)
# With NextProducerEpoch of KIP-939 as well.
PREPARED_2PC = (
    "00010000000000000fa07fff0000ea60020303696e03000000000000000300046f75740200000001000000"
    "018bcfe5687b0000018bcfe568640400080000000000000f9f01080000000000000fa10202000203020005"
)


def test_an_empty_state_is_written_as_kafka_writes_it() -> None:
    assert encode(TransactionRecord(ORDERS, EMPTY)) == (KEY, bytes.fromhex(EMPTY_1))


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_usual_record_and_its_general_form_have_the_same_state(is_commit: bool) -> None:
    """A tagged field that no release knows yet makes a value one of the general form."""
    status = TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
    state = replace(
        EMPTY,
        status=status,
        last_epoch=ProducerEpoch(6),
        client_version=2,
        last_outcome=Outcome(identity(4000, 6), is_commit),
    )
    key, value = encode(TransactionRecord(ORDERS, state))
    assert value is not None
    assert len(value) == 58
    decoded = decode(key, value)
    assert decoded == TransactionRecord(ORDERS, state)
    tags_at = 34
    general = bytearray(value + b"\xff\x7f\x00")
    general[tags_at] += 1
    assert decode(key, bytes(general)) == decoded
    with pytest.raises(Malformed, match="status 9"):
        decode(key, value[:16] + b"\x09" + value[17:])


def test_a_forgotten_id_is_a_tombstone() -> None:
    assert encode(TransactionRecord(ORDERS, None)) == (KEY, None)
    assert decode(KEY, None) == TransactionRecord(ORDERS, None)


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (EMPTY_0, EMPTY),
        (EMPTY_1, EMPTY),
        (PREPARED_1, PREPARED),
        (PREPARED_2PC, PREPARED),
        (
            PREPARED_0,
            replace(PREPARED, previous_id=ProducerId(-1), next_id=ProducerId(-1), client_version=0),
        ),
    ],
)
def test_records_of_kafka_are_read(value: str, state: Transaction) -> None:
    assert decode(KEY, bytes.fromhex(value)) == TransactionRecord(ORDERS, state)


def test_our_fields_follow_those_of_kafka_in_its_record() -> None:
    """Apart from the number of tagged fields, Kafka's bytes are a prefix of ours."""
    _, value = encode(TransactionRecord(ORDERS, PREPARED))
    assert value is not None
    kafkas = bytes.fromhex(PREPARED_1)
    number_at = len(kafkas) - (1 + 2 + 8 + 2 + 8 + 2 + 2)
    assert value[:number_at] == kafkas[:number_at]
    assert (value[number_at], kafkas[number_at]) == (4, 3)  # ours has the topics' ids
    assert value[number_at + 1 : len(kafkas)] == kafkas[number_at + 1 :]


def test_our_fields_have_the_documented_bytes() -> None:
    state = replace(
        EMPTY,
        status=TransactionStatus.ONGOING,
        partitions=frozenset(
            {TransactionPartition(TopicId(b"\xab" * 16), TopicName("t"), PartitionIndex(1))}
        ),
        last_epoch=ProducerEpoch(6),
        ended_by=EndedBy.OPERATOR,
        staged=Staged(step=3, member="m", prepared_ms=258),
        ledger=Ledger(last_step=2, members=8, is_final=True),
        last_outcome=Outcome(identity(4000, 5), is_commit=True),
    )
    _, value = encode(TransactionRecord(ORDERS, state))
    assert value is not None
    tags = (
        "06"
        "904e10" + "ab" * 16 + "914e020006"
        "924e0103"
        "934e12" + "0000000000000003" + "0000000000000102" + "026d" + "944e0d"
        "0000000000000002"
        "00000008"
        "01" + "954e0b"
        "0000000000000fa0"
        "0005"
        "01"
    )
    assert value.hex().endswith(tags)
    timed = replace(state, staged=Staged(3, "m", 258, prepared_timeout_ms=300_000))
    _, value = encode(TransactionRecord(ORDERS, timed))
    assert value is not None
    longer = tags.replace("934e12", "934e1a").replace("026d", "026d" + "00000000000493e0")
    assert value.hex().endswith(longer)


@pytest.mark.parametrize("status", [6, 7, -1, 99])
def test_a_status_that_is_never_written_is_an_error(status: int) -> None:
    value = bytearray(bytes.fromhex(EMPTY_1))
    value[16] = status & 0xFF
    with pytest.raises(Malformed, match="status"):
        decode(KEY, bytes(value))


def test_a_value_of_a_newer_release_is_an_error_and_a_key_is_skipped() -> None:
    value = bytearray(bytes.fromhex(EMPTY_1))
    value[1] = 2
    with pytest.raises(Malformed, match="newer release"):
        decode(KEY, bytes(value))
    assert decode(b"\x00\x01" + KEY[2:], bytes(value)) is None


@pytest.mark.parametrize("value", [EMPTY_0, EMPTY_1, PREPARED_0, PREPARED_1])
def test_a_value_that_ends_too_early_is_an_error(value: str) -> None:
    whole = bytes.fromhex(value)
    for length in range(len(whole)):
        with pytest.raises(Malformed):
            decode(KEY, whole[:length])


partitions = st.builds(
    TransactionPartition,
    st.sampled_from([TopicId(b"a" * 16), TopicId(b"b" * 16)]),
    st.sampled_from([TopicName("t"), TopicName("ü")]),
    st.integers(0, (1 << 31) - 1).map(PartitionIndex),
)
epochs = st.integers(-1, 32_767).map(ProducerEpoch)
producer_ids = st.integers(-1, (1 << 63) - 1).map(ProducerId)
times = st.integers(-1, 1 << 50)
states = st.builds(
    Transaction,
    producer_id=producer_ids,
    producer_epoch=epochs,
    last_epoch=epochs,
    previous_id=producer_ids,
    next_id=producer_ids,
    timeout_ms=st.integers(0, (1 << 31) - 1),
    status=st.sampled_from(TransactionStatus),
    partitions=st.frozensets(partitions, max_size=5),
    update_ms=times,
    start_ms=times,
    client_version=st.integers(0, 2),
    ended_by=st.sampled_from(EndedBy),
    last_outcome=st.none()
    | st.builds(Outcome, st.builds(identity, producer_ids, epochs), st.booleans()),
    staged=st.none()
    | st.builds(
        Staged, st.integers(0, 1 << 40), st.text(max_size=5), times, st.integers(0, 1 << 40)
    ),
    ledger=st.none()
    | st.builds(Ledger, st.integers(-1, 1 << 40), st.integers(0, 1 << 30), st.booleans()),
)


@given(state=states)
def test_every_state_is_read_back_as_it_was_written(state: Transaction) -> None:
    if state.status is TransactionStatus.EMPTY:
        state = replace(state, partitions=frozenset())
    record = TransactionRecord(ORDERS, state)
    assert decode(*encode(record)) == record


@given(key=st.binary(max_size=20), value=st.binary(max_size=100))
def test_damaged_bytes_are_refused_and_nothing_else_is_raised(key: bytes, value: bytes) -> None:
    for damaged_key in (KEY, key):
        try:
            decode(damaged_key, value)
        except Malformed:
            continue
