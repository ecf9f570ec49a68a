"""Where the logs of a leader and a follower diverge, and where the follower truncates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_broker.leader_epochs import LeaderEpochs
from odradek_broker.partition.log_positions import LogPositions
from odradek_broker.partition.truncation import Divergence, Lineage, compare, cut_offset


def log(epochs: list[tuple[int, int]], end: int, start: int = 0) -> LogPositions:
    return LogPositions(
        log_start=start,
        log_end=end,
        durable_end=end,
        high_watermark=start,
        epochs=LeaderEpochs(epochs),
    )


@pytest.mark.parametrize(
    ("name", "leader", "follower", "verdict", "cut"),
    [
        ("equal", log([(1, 0)], 5), log([(1, 0)], 5), Lineage.SHARED, None),
        ("behind", log([(1, 0), (2, 5)], 9), log([(1, 0)], 3), Lineage.SHARED, None),
        ("both empty", log([], 0), log([], 0), Lineage.SHARED, None),
        ("empty, within", log([(3, 4)], 9, 4), log([], 7, 7), Lineage.SHARED, None),
        ("empty, beyond", log([(3, 4)], 9, 4), log([], 12, 12), Lineage.GONE, None),
        ("below the start", log([(3, 4)], 9, 4), log([(3, 0)], 3), Lineage.GONE, None),
        ("no shared epoch", log([(5, 4)], 9, 4), log([(3, 0)], 8), Lineage.GONE, None),
        ("leader without epochs", log([], 9), log([(3, 0)], 8), Lineage.GONE, None),
        ("later epoch", log([(1, 0), (3, 4)], 9), log([(1, 0), (7, 4)], 6), Divergence(3, 9), 4),
        (
            "own epochs begin later",
            log([(1, 0), (4, 7)], 9),
            log([(3, 5)], 8, 5),
            Divergence(1, 7),
            5,
        ),
        ("longer", log([(1, 0), (3, 4)], 9), log([(1, 0)], 6), Divergence(1, 4), 4),
        ("KIP-101", log([(1, 0), (3, 4)], 9), log([(1, 0), (2, 4)], 6), Divergence(1, 4), 4),
        ("KIP-279", log([(1, 0), (4, 7)], 9), log([(1, 0), (3, 5)], 8), Divergence(1, 7), 5),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lineages_are_compared_by_epoch(
    name: str,
    leader: LogPositions,
    follower: LogPositions,
    verdict: object,
    cut: int | None,
) -> None:
    found = compare(leader, follower.log_end, follower.last_epoch)
    assert found == verdict
    if isinstance(found, Divergence):
        assert cut_offset(follower, found) == cut


Records = list[int]  # the epoch of each record


def _cache(records: Records) -> list[tuple[int, int]]:
    return [(e, i) for i, e in enumerate(records) if i == 0 or records[i - 1] != e]


_shared = st.lists(st.integers(1, 3), max_size=6).map(sorted)
_tail = st.lists(st.integers(0, 4), max_size=6).map(sorted)


@given(_shared, _tail, _tail)
def test_cutting_and_asking_again_ends_at_the_shared_prefix(
    shared: Records, ours: Records, theirs: Records
) -> None:
    """Leaders write even epochs and followers odd ones after `shared`, so the logs have nothing in
    common after it.
    """
    leader_log = shared + [4 + 2 * e for e in ours]
    follower_log = shared + [5 + 2 * e for e in theirs]
    leader = log(_cache(leader_log), len(leader_log))
    for _ in range(20):
        follower = log(_cache(follower_log), len(follower_log))
        verdict = compare(leader, follower.log_end, follower.last_epoch)
        if not isinstance(verdict, Divergence):
            break
        cut = cut_offset(follower, verdict)
        assert cut >= len(shared), "a shared record was cut"
        del follower_log[cut:]
    else:
        raise AssertionError("it does not end")
    if verdict is Lineage.SHARED:
        assert follower_log == leader_log[: len(follower_log)]
    else:
        assert not shared
