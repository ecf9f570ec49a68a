"""Idempotent producers and transactions: which batches are new, repeated or refused, and snapshots
of that state.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.log import producer_state
from odradek_broker.log.producer_state import (
    CorruptSnapshot,
    ProducerStates,
    StoredBatch,
    decode_snapshot,
    encode_snapshot,
)
from odradek_broker.log.segments.indexes import AbortedTransaction
from odradek_protocol.identity import Offset, ProducerEpoch, ProducerId
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.records.hashes import crc32c

US = ProducerId(7)
LAST = (1 << 31) - 1


def stored(base_sequence: int, count: int = 2, base_offset: int | None = None) -> StoredBatch:
    base = Offset(base_sequence if base_offset is None else base_offset)
    last = (base_sequence + count - 1) % (1 << 31)
    return StoredBatch(base_sequence, last, base, Offset(base + count - 1), 1000)


def after(*bases: int, epoch: int = 3) -> ProducerStates:
    states = ProducerStates()
    for number, base in enumerate(bases):
        batch = stored(base, base_offset=100 + 2 * number)
        states.note_batch(US, ProducerEpoch(epoch), batch, is_transactional=False)
    return states


@pytest.mark.parametrize(
    ("bases", "epoch", "base_sequence", "answer"),
    [
        ([], 3, 0, ErrorCode.NONE),
        ([], 3, 41, ErrorCode.NONE),  # its state expired, or its records were deleted
        ([0], 3, 2, ErrorCode.NONE),
        ([0], 3, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([0, 2, 4, 6, 8], 3, 10, ErrorCode.NONE),
        ([0, 2, 4, 6, 8, 10], 3, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([0], 2, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        ([0], 4, 0, ErrorCode.NONE),
        ([0], 4, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([LAST - 1], 3, 0, ErrorCode.NONE),  # sequences wrap
        ([LAST], 3, 1, ErrorCode.NONE),
        ([LAST - 1], 3, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([LAST - 1, 0], 3, LAST - 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([2], 3, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),  # its first batch was not written
    ],
)
def test_what_a_client_sends_is_judged(
    bases: list[int], epoch: int, base_sequence: int, answer: ErrorCode
) -> None:
    last = (base_sequence + 1) % (1 << 31)
    assert after(*bases).check(US, ProducerEpoch(epoch), base_sequence, last) is answer


def test_each_of_the_last_five_batches_is_known_as_a_repeat_with_its_offsets() -> None:
    states = after(0, 2, 4, 6, 8, 10)
    for number, base in enumerate([0, 2, 4, 6, 8, 10]):
        answer = states.check(US, ProducerEpoch(3), base, base + 1)
        if number == 0:
            assert answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            assert isinstance(answer, StoredBatch)
            assert answer.base_offset == 100 + 2 * number


def test_a_new_epoch_forgets_the_sequences_of_the_old_one() -> None:
    states = after(0, 2, 4)
    states.note_batch(US, ProducerEpoch(4), stored(0), is_transactional=False)
    entry = states.entry(US)
    assert entry is not None
    assert len(entry.batches) == 1
    assert states.check(US, ProducerEpoch(3), 6, 7) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(US, ProducerEpoch(4), 2, 3) is ErrorCode.NONE


def begin(states: ProducerStates, producer: int, offset: int, sequence: int = 0) -> None:
    states.note_batch(
        ProducerId(producer),
        ProducerEpoch(0),
        stored(sequence, base_offset=offset),
        is_transactional=True,
    )


def end(states: ProducerStates, producer: int, offset: int, *, abort: bool) -> object:
    return states.note_marker(
        ProducerId(producer),
        ProducerEpoch(0),
        coordinator_epoch=1,
        is_abort=abort,
        offset=Offset(offset),
        timestamp_ms=1000,
    )


def test_the_first_unstable_offset_waits_for_the_marker_and_for_its_replication() -> None:
    states = ProducerStates()
    assert states.first_unstable_offset(Offset(0)) is None
    begin(states, 1, 10)
    begin(states, 2, 20)
    begin(states, 1, 30, 2)
    assert states.first_unstable_offset(Offset(40)) == 10
    assert next(iter(states.ongoing().values())) == 10
    end(states, 1, 40, abort=False)
    assert next(iter(states.ongoing().values())) == 20
    assert states.first_unstable_offset(Offset(40)) == 10, "the marker is not replicated"
    assert states.first_unstable_offset(Offset(41)) == 20
    aborted = end(states, 2, 50, abort=True)
    assert aborted == AbortedTransaction(ProducerId(2), Offset(20), Offset(50), Offset(51))
    assert states.first_unstable_offset(Offset(51)) is None


def test_an_abort_is_kept_with_the_last_stable_offset_of_that_moment() -> None:
    states = ProducerStates()
    begin(states, 1, 10)
    begin(states, 2, 20)
    aborted = end(states, 2, 30, abort=True)
    assert (aborted.first_offset, aborted.last_offset, aborted.last_stable_offset) == (20, 30, 10)  # type: ignore[attr-defined]
    assert end(states, 3, 31, abort=True) is None, "a marker without records aborts nothing"


@pytest.mark.interpreted
def test_of_more_producers_than_the_bound_the_one_idle_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    states = ProducerStates()
    for number, is_transactional in ((1, True), (2, False), (3, False), (2, False), (4, False)):
        states.note_batch(
            ProducerId(number),
            ProducerEpoch(0),
            stored(0, base_offset=100),
            is_transactional=is_transactional,
        )
    assert set(states.entries()) == {1, 2, 4}, "1 is in a transaction, 2 appended after 3"
    assert states.check(ProducerId(3), ProducerEpoch(0), 0, 1) is ErrorCode.NONE
    states.note_batch(ProducerId(3), ProducerEpoch(0), stored(0), is_transactional=False)
    assert set(states.entries()) == {1, 4, 3}


def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    states = after(0)
    begin(states, 1, 10)
    assert states.expire(now_ms=10**12, idle_ms_max=500) == 0, (
        "just heard of, old as its records are"
    )
    assert states.expire(now_ms=10**12 + 100, idle_ms_max=500) == 0
    states.note_batch(US, ProducerEpoch(3), stored(2), is_transactional=False)
    assert states.expire(now_ms=10**12 + 700, idle_ms_max=500) == 0, "it wrote meanwhile"
    assert states.expire(now_ms=10**12 + 800, idle_ms_max=500) == 0
    assert states.expire(now_ms=10**12 + 1299, idle_ms_max=500) == 0
    assert states.expire(now_ms=10**12 + 1300, idle_ms_max=500) == 1
    assert list(states.entries()) == [1]


batches = st.lists(st.integers(1, 9), max_size=8)


@given(
    st.dictionaries(
        st.integers(0, (1 << 63) - 1),
        st.tuples(st.integers(0, 32767), st.integers(0, LAST), batches, st.booleans()),
        max_size=6,
    )
)
def test_a_snapshot_is_read_back(
    producers: dict[int, tuple[int, int, list[int], bool]],
) -> None:
    states, offset = ProducerStates(), 0
    for producer, (epoch, sequence, counts, is_open) in producers.items():
        for count in counts:
            batch = stored(sequence, count, offset)
            states.note_batch(
                ProducerId(producer), ProducerEpoch(epoch), batch, is_transactional=is_open
            )
            sequence, offset = (sequence + count) % (1 << 31), offset + count
    again = ProducerStates.from_entries(decode_snapshot(encode_snapshot(states.entries())))
    assert again.entries() == states.entries()
    assert again.ongoing() == states.ongoing()
    assert list(again.ongoing()) == list(states.ongoing()), "oldest first"


def test_a_snapshot_begins_as_kafkas_does() -> None:
    data = encode_snapshot(after(40, 42).entries())
    body = data[6:]
    assert struct.unpack(">hI", data[:6]) == (1, crc32c(body))
    assert struct.unpack(">iqhiqiqiq", body[:50]) == (1, 7, 3, 43, 103, 1, 1000, -1, -1)
    assert body[50:54] == b"ODRK"


@pytest.mark.parametrize("cut", [0, 3, 9, 30, 60])
def test_a_torn_snapshot_is_refused(cut: int) -> None:
    data = encode_snapshot(after(0, 2, 4).entries())
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data[:cut])


def test_a_flipped_bit_in_a_snapshot_is_refused() -> None:
    data = encode_snapshot(after(0, 2, 4).entries())
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(damaged)


def test_unknown_content_behind_the_producers_is_refused() -> None:
    """Its size and checksum may be right: then the file has a later format."""
    data = encode_snapshot(after(0, 2, 4).entries())
    body = data[6:].replace(b"ODRK", b"LATE")
    assert body != data[6:]
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data[:2] + struct.pack(">I", crc32c(body)) + body)
