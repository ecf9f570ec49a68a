"""The epoch cache: ends of epochs, cuts from both sides, its checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.log.leader_epochs import LeaderEpochs
from odradek_protocol.identity import LeaderEpoch, Offset

END = Offset(100)


def cache(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.enter(LeaderEpoch(epoch), Offset(start))
    return epochs


@pytest.mark.parametrize(
    ("entries", "asked", "answer"),
    [
        ([], 3, (-1, -1)),
        ([(2, 10), (5, 40)], 5, (5, 100)),
        ([(2, 10), (5, 40)], 9, (5, 100)),
        ([(2, 10), (5, 40)], 4, (2, 40)),
        ([(2, 10), (5, 40)], 2, (2, 40)),
        ([(2, 10), (5, 40)], 1, (1, 10)),
        ([(0, 0)], 0, (0, 100)),
    ],
)
def test_the_end_of_an_epoch_is_where_the_next_one_begins(
    entries: list[tuple[int, int]], asked: int, answer: tuple[int, int]
) -> None:
    assert cache(*entries).end_of(LeaderEpoch(asked), END) == answer


def test_an_epoch_without_records_vanishes_when_the_next_begins_at_the_same_place() -> None:
    epochs = cache((1, 0), (2, 50), (3, 50))
    assert epochs.entries() == [(1, 0), (3, 50)]


def test_epochs_never_fall() -> None:
    with pytest.raises(AssertionError, match="epoch 3 after 4"):
        cache((4, 0), (3, 10))


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (0, []),
        (10, []),
        (11, [(1, 10)]),
        (20, [(1, 10)]),
        (21, [(1, 10), (2, 20)]),
        (99, [(1, 10), (2, 20)]),
    ],
)
def test_a_cut_at_the_end_forgets_epochs_that_began_there(
    cut: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache((1, 10), (2, 20))
    epochs.cut_end(Offset(cut))
    assert epochs.entries() == left


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (5, [(1, 10), (2, 20), (3, 30)]),
        (10, [(1, 10), (2, 20), (3, 30)]),
        (15, [(1, 15), (2, 20), (3, 30)]),
        (20, [(2, 20), (3, 30)]),
        (99, [(3, 99)]),
    ],
)
def test_a_cut_at_the_start_moves_the_epoch_that_holds_it(
    cut: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache((1, 10), (2, 20), (3, 30))
    epochs.cut_start(Offset(cut))
    assert epochs.entries() == left


def test_the_epoch_of_an_offset() -> None:
    epochs = cache((1, 10), (4, 20))
    assert [epochs.at(Offset(o)) for o in (9, 10, 19, 20, 1000)] == [-1, 1, 1, 4, 4]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 99)), max_size=20, unique_by=lambda e: e[0]
    )
)
def test_the_checkpoint_is_read_back(entries: list[tuple[int, int]]) -> None:
    starts = sorted(start for _, start in entries)
    epochs = cache(*zip(sorted(epoch for epoch, _ in entries), starts, strict=True))
    assert LeaderEpochs.from_text(epochs.to_text()).entries() == epochs.entries()


def test_the_checkpoint_is_kafkas_text() -> None:
    assert cache((1, 10), (4, 20)).to_text() == b"0\n2\n1 10\n4 20\n"


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
        LeaderEpochs.from_text(text)
