"""The checker of group histories finds, for each rule, a history that violates it, and names the rule."""

from __future__ import annotations

from typing import Any

from odradek_protocol.identity import GroupId, PartitionIndex, TopicName, TopicPartition
from tests.sim.group_history import (
    NEVER_US,
    Commit,
    GroupHistory,
    OffsetRead,
    check_groups,
)
from tests.sim.history import Outcome

G = GroupId("group")
P = TopicPartition(TopicName("topic"), PartitionIndex(0))
Q = TopicPartition(TopicName("topic"), PartitionIndex(1))


def commit(number: int, began: int, ended: int | None, **changes: Any) -> Commit:
    fields: dict[str, Any] = {
        "group": G,
        "partition": P,
        "commit_id": f"c{number}",
        "offset": number * 10,
        "member_id": "m1",
        "epoch": 1,
        "began_us": began,
        "by": "m1",
        "ended_us": NEVER_US if ended is None else ended,
        "outcome": Outcome.UNKNOWN if ended is None else Outcome.OK,
    }
    return Commit(**{**fields, **changes})


def read(number: int, began: int, ended: int, by: str = "m1") -> OffsetRead:
    return OffsetRead(
        group=G,
        partition=P,
        commit_id=f"c{number}" if number else "",
        offset=number * 10,
        began_us=began,
        ended_us=ended,
        by=by,
    )


def names(history: GroupHistory, **options: Any) -> list[str]:
    return sorted({v.name for v in check_groups(history, **options)})


def history(*operations: Commit | OffsetRead) -> GroupHistory:
    return GroupHistory(
        commits=[o for o in operations if isinstance(o, Commit)],
        reads=[o for o in operations if isinstance(o, OffsetRead)],
    )


def synced(h: GroupHistory, generation: int, at: int, *, by: str, owned: Any = (P,)) -> None:
    h.generation_synced(
        G, generation, frozenset(owned), by=by, is_static=False, began_us=at - 1, ended_us=at
    )


def test_a_good_history_is_good() -> None:
    good = history(
        read(0, 0, 5), commit(1, 10, 20), read(1, 30, 40), commit(2, 50, 60), read(2, 70, 80)
    )
    synced(good, 1, 1, by="m1")
    good.confirmed(G, 1, by="m1", at_us=60)
    synced(good, 2, 90, by="m2")
    assert names(good) == []


def test_p8_an_acknowledged_offset_that_vanished() -> None:
    assert names(history(commit(1, 10, 20), read(0, 30, 40))) == ["offset-lost"]


def test_p8_an_offset_older_than_the_last_acknowledged() -> None:
    assert names(history(commit(1, 10, 20), commit(2, 30, 40), read(1, 50, 60))) == ["offset-lost"]


def test_p8_an_offset_that_went_back() -> None:
    bad = history(
        commit(1, 10, None), commit(2, 10, None), read(1, 20, 25), read(2, 30, 35), read(1, 40, 45)
    )
    assert names(bad) == ["offset-lost"]
    bad = history(
        commit(1, 10, None),
        commit(2, 10, None),
        read(1, 20, 25),
        read(2, 30, 35),
        read(1, 40, 45),
        read(2, 50, 55),
    )
    assert names(bad) == ["offset-went-back"]


def test_p8_a_commit_of_unknown_outcome_may_come_late_or_never() -> None:
    late = history(commit(1, 10, None), commit(2, 30, 40), read(2, 50, 60), read(1, 70, 80))
    assert names(late) == []
    assert names(history(commit(1, 10, None), read(0, 30, 40), read(0, 70, 80))) == []


def test_p8_but_not_after_its_generation_is_over() -> None:
    late = history(commit(1, 10, None), commit(2, 30, 40), read(2, 50, 60), read(1, 70, 80))
    synced(late, 2, 20, by="m2")
    # The first violation is that the commit of c2 was accepted after its epoch; the second one, that c1 was read late.
    assert names(late) == ["commit-of-an-old-epoch", "offset-went-back"]
    late.commits[1].epoch = 2
    assert names(late) == ["offset-went-back"]


def test_p8_a_commit_of_an_old_generation_that_was_accepted() -> None:
    bad = history(commit(1, 30, 40))
    synced(bad, 2, 20, by="m2")
    assert names(bad) == ["commit-of-an-old-epoch"]


def test_p8_a_commit_at_an_old_member_epoch_that_was_accepted() -> None:
    bad = history(commit(1, 30, 40))
    bad.epoch_told(
        G, 2, frozenset(), kept=frozenset(), by="m1", member_id="m1", began_us=10, ended_us=20
    )
    assert names(bad) == ["commit-of-an-old-epoch"]


def test_p8_a_refused_commit_that_is_read() -> None:
    bad = history(commit(1, 10, 20, outcome=Outcome.FAIL), read(1, 30, 40))
    assert names(bad) == ["refused-offset"]


def test_p8_an_offset_that_nobody_committed() -> None:
    assert names(history(read(9, 30, 40))) == ["unknown-offset"]


def test_p8_an_offset_that_is_read_before_it_is_committed() -> None:
    assert names(history(commit(1, 30, 40), read(1, 10, 20))) == ["offset-from-the-future"]


def test_p8_an_observer_may_be_behind_by_a_lease_and_no_more() -> None:
    stale = history(commit(1, 10, 20), commit(2, 30, 40), read(1, 50, 60, by="tool"))
    assert names(stale) == ["offset-lost"]
    assert names(stale, observers=["tool"], staleness_us=15) == []
    assert names(stale, observers=["tool"], staleness_us=5) == ["offset-lost"]


def test_p8_a_group_that_lost_too_many_copies_is_not_judged() -> None:
    assert names(history(commit(1, 10, 20), read(0, 30, 40)), ignored=[G]) == []


def test_p9_two_owners_in_a_generation() -> None:
    bad = history()
    synced(bad, 1, 10, by="m1", owned=(P, Q))
    synced(bad, 1, 12, by="m2", owned=(Q,))
    assert names(bad) == ["two-owners"]


def test_p9_an_owner_that_goes_on_beside_its_successor() -> None:
    bad = history()
    synced(bad, 1, 10, by="m1")
    synced(bad, 2, 30, by="m2")
    bad.confirmed(G, 2, by="m2", at_us=50)
    bad.confirmed(G, 1, by="m1", at_us=25)
    assert names(bad) == []
    bad.confirmed(G, 1, by="m1", at_us=40)
    assert names(bad) == ["owners-overlap"]


def test_p9_an_owner_of_an_epoch_that_came_again_in_a_group_begun_anew() -> None:
    good = history()
    good.begins_anew(G, by="m1")
    synced(good, 1, 10, by="m1")
    good.confirmed(G, 1, by="m1", at_us=20)
    synced(good, 2, 30, by="m2")
    good.confirmed(G, 2, by="m2", at_us=40)
    good.begins_anew(G, by="m1")
    synced(good, 1, 50, by="m1")
    good.confirmed(G, 1, by="m1", at_us=60)
    assert names(good) == []


def test_p9_a_static_member_that_comes_back_to_something_else() -> None:
    bad = history()
    for owned in (P, Q):
        bad.generation_synced(
            G, 1, frozenset({owned}), by="static", is_static=True, began_us=1, ended_us=2
        )
    assert names(bad) == ["static-member-moved"]
