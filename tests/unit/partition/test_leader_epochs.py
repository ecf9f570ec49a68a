"""The leader epochs of a log: where each one ends, truncation from both sides, and the text of the
checkpoint file.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.log.directory.partition_files import decode_epochs, encode_epochs
from odradek_protocol.identity import LeaderEpoch, Offset

END = Offset(100)
UNKNOWN = (-1, -1)


@pytest.mark.parametrize(
    ("entries", "epoch", "expected"),
    [
        ([], 3, UNKNOWN),
        ([], -1, UNKNOWN),
        ([(2, 10), (5, 40)], 5, (5, 100)),
        ([(2, 10), (5, 40)], 4, (2, 40)),
        ([(2, 10), (5, 40)], 2, (2, 40)),
        ([(2, 10), (4, 40), (7, 60)], 5, (4, 60)),
        ([(0, 0)], 0, (0, 100)),
        pytest.param([(2, 10), (5, 40)], 1, (1, 10), id="below all: the records were deleted"),
        pytest.param([(2, 10), (5, 40)], 9, UNKNOWN, id="above all"),
        pytest.param([(2, 10), (5, 40)], -1, UNKNOWN, id="no epoch"),
    ],
)
def test_the_end_of_an_epoch_is_what_kafka_answers(
    entries: list[tuple[int, int]], epoch: int, expected: tuple[int, int]
) -> None:
    assert LeaderEpochs(entries).end_of(LeaderEpoch(epoch), END) == expected


def test_an_epoch_without_records_is_dropped_when_the_next_begins_at_the_same_offset() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 50)])
    epochs.enter(LeaderEpoch(3), Offset(50))
    assert epochs.entries() == [(1, 0), (3, 50)]
    assert (epochs.earliest, epochs.latest) == (1, 3)


def test_epochs_never_fall() -> None:
    with pytest.raises(AssertionError, match="epoch 3 after 4"):
        LeaderEpochs([(4, 0), (3, 10)])


def test_the_latest_epoch_may_be_entered_again() -> None:
    epochs = LeaderEpochs([(4, 0)])
    changes = epochs.changes
    epochs.enter(LeaderEpoch(4), Offset(10))
    assert (epochs.entries(), epochs.changes) == ([(4, 0)], changes)


@pytest.mark.parametrize(
    ("end_offset", "expected"),
    [
        (0, []),
        (10, []),
        (11, [(1, 10)]),
        (20, [(1, 10)]),
        (21, [(1, 10), (2, 20)]),
        (99, [(1, 10), (2, 20)]),
    ],
)
def test_truncating_the_end_drops_the_epochs_that_begin_there(
    end_offset: int, expected: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs([(1, 10), (2, 20)])
    changes = epochs.changes
    epochs.truncate_from_end(Offset(end_offset))
    assert epochs.entries() == expected
    assert (epochs.changes != changes) == (len(expected) < 2)


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        (5, [(1, 10), (2, 20), (3, 30)]),
        (10, [(1, 10), (2, 20), (3, 30)]),
        (15, [(1, 15), (2, 20), (3, 30)]),
        (20, [(2, 20), (3, 30)]),
        (99, [(3, 99)]),
    ],
)
def test_truncating_the_start_moves_the_epoch_that_covers_it(
    start_offset: int, expected: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs([(1, 10), (2, 20), (3, 30)])
    changes = epochs.changes
    epochs.truncate_from_start(Offset(start_offset))
    assert epochs.entries() == expected
    assert (epochs.changes != changes) == (start_offset > 10)


def test_the_epoch_of_an_offset() -> None:
    epochs = LeaderEpochs([(1, 10), (4, 20)])
    assert [epochs.at(offset) for offset in (-1, 9, 10, 19, 20, 1000)] == [-1, -1, 1, 1, 4, 4]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 99)), max_size=20, unique_by=lambda e: e[0]
    )
)
def test_the_checkpoint_is_read_back(entries: list[tuple[int, int]]) -> None:
    starts = sorted(start for _, start in entries)
    epochs = LeaderEpochs(zip(sorted(epoch for epoch, _ in entries), starts, strict=True))
    assert decode_epochs(encode_epochs(epochs)).entries() == epochs.entries()


def test_a_checkpoint_that_was_just_read_is_not_stale() -> None:
    assert decode_epochs(b"0\n1\n1 10\n").changes == 0


def test_the_checkpoint_is_kafkas_text() -> None:
    assert encode_epochs(LeaderEpochs([(1, 10), (4, 20)])) == b"0\n2\n1 10\n4 20\n"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\n1 10\n",
        b"0\n1\n1 10",
        b"0\n2\n4 20\n1 10\n",
        b"0\n1\nx y\n",
        b"0\n1\n1 -1\n",
        b"\xff\xfe\n1\n1 1\n",
        b"0\n2\n1 20\n2 10\n",
    ],
)
def test_a_torn_checkpoint_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_epochs(text)
