"""The checker of client histories finds, for each property, a history that violates it, and names the property."""

from __future__ import annotations

from typing import Any

from tests.sim.history import History, Latest, Outcome, Poll, Send, check

P = "partition"
GOOD_LOG = {0: 100, 1: 101, 2: 102}


def send(values: tuple[int, ...], offset: int, **changes: Any) -> Send[str]:
    fields: dict[str, Any] = {
        "client": 1,
        "partition": P,
        "values": values,
        "producer_epoch": 0,
        "base_sequence": values[0] - 100,
        "acks": -1,
        "outcome": Outcome.OK,
        "offset": offset,
    }
    return Send(**{**fields, **changes})


def poll(position: int, *records: tuple[int, int], high_watermark: int = 3) -> Poll[str]:
    return Poll(
        client=9,
        partition=P,
        position=position,
        records=records,
        high_watermark=high_watermark,
    )


def good() -> History[str]:
    return History(
        sends=[send((100, 101), 0), send((102,), 2)],
        polls=[poll(0, (0, 100), (1, 101)), poll(2, (2, 102)), poll(3)],
        latests=[Latest(client=9, partition=P, offset=2), Latest(client=9, partition=P, offset=3)],
        topics_acknowledged=["a"],
    )


def names(
    history: History[str], *logs: dict[int, int], topics: dict[int, list[str]] | None = None
) -> list[str]:
    final = {P: dict(enumerate(logs or (GOOD_LOG, GOOD_LOG)))}
    found = check(history, final, topics_by_node=topics or {1: ["a"]})
    return sorted({violation.name for violation in found})


def test_a_good_history_is_good() -> None:
    assert names(good()) == []


def test_p1_an_acknowledged_record_that_is_gone() -> None:
    history = good()
    history.polls.clear()
    assert names(history, {0: 100, 1: 101}) == ["lost-write"]


def test_p1_an_acknowledged_record_that_is_elsewhere() -> None:
    history = good()
    history.sends[1].offset = 7
    assert names(history) == ["lost-write"]


def test_p1_is_not_promised_to_acks_1_nor_to_what_is_unknown() -> None:
    history = good()
    history.sends += [
        send((200,), 3, acks=1, base_sequence=3),
        send((201,), -1, outcome=Outcome.UNKNOWN, base_sequence=4),
    ]
    assert names(history) == []


def test_p1_is_not_promised_below_the_logs_start() -> None:
    history = good()
    history.polls.clear()
    final = {P: {1: {2: 102}}}
    assert not check(history, final, log_starts={P: 2}, topics_by_node={})
    assert check(history, final, log_starts={P: 1}, topics_by_node={})


def test_p1_a_reader_that_is_told_that_what_it_read_is_past_the_end() -> None:
    history = good()
    history.polls.append(
        Poll(client=9, partition=P, position=0, records=(), high_watermark=0, reset_from=3)
    )
    assert names(history) == ["lost-write"]


def test_p2_replicas_that_differ() -> None:
    assert names(good(), GOOD_LOG, {0: 100, 1: 555, 2: 102}) == ["inconsistent-offsets"]


def test_p2_a_reader_that_saw_another_value() -> None:
    history = good()
    history.polls[0] = poll(0, (0, 100), (1, 555))
    assert names(history) == ["inconsistent-offsets"]


def test_p3_a_refused_record_that_is_read() -> None:
    history = good()
    history.sends.append(send((103,), -1, outcome=Outcome.FAIL))
    assert names(history, {**GOOD_LOG, 3: 103}) == ["aborted-read"]


def test_p4_a_record_that_is_there_twice() -> None:
    assert names(good(), {**GOOD_LOG, 3: 102}) == ["duplicate"]


def test_p4_records_of_one_producer_out_of_order() -> None:
    history = History(
        sends=[
            send((100, 101), 1),
            send((102,), 0),
        ]
    )
    assert names(history, {0: 102, 1: 100, 2: 101}) == ["nonmonotonic-send"]


def test_p4_a_repeat_that_is_refused_although_it_is_there() -> None:
    history = good()
    history.sends[1].is_refused_repeat = True
    assert names(history) == ["repeat-not-recognized"]
    assert not check(history, {P: {1: {}}}, log_starts={P: 3}, topics_by_node={})


def test_p5_a_reader_that_skips_within_a_poll() -> None:
    history = good()
    history.polls = [poll(0, (0, 100), (2, 102))]
    assert names(history) == ["int-poll-skip"]


def test_p5_a_reader_that_goes_back_within_a_poll() -> None:
    history = good()
    history.polls = [poll(0, (0, 100), (0, 100))]
    assert names(history) == ["int-nonmonotonic-poll"]


def test_p5_a_reader_that_skips_between_polls() -> None:
    history = good()
    history.polls = [poll(0, (0, 100)), poll(2, (2, 102))]
    assert names(history) == ["poll-skip"]


def test_p5_a_reader_that_goes_back_between_polls() -> None:
    history = good()
    history.polls = [poll(0, (0, 100), (1, 101)), poll(1, (1, 101))]
    assert names(history) == ["nonmonotonic-poll"]


def test_p6_a_record_at_or_past_the_watermark() -> None:
    history = good()
    history.polls = [poll(0, (0, 100), (1, 101), high_watermark=1)]
    assert names(history) == ["read-past-watermark"]


def test_p6_an_end_that_falls() -> None:
    history = good()
    history.latests.reverse()
    assert names(history) == ["watermark-fell"]


def test_p12_a_topic_that_a_node_does_not_know() -> None:
    assert names(good(), topics={1: ["a"], 2: []}) == ["lost-metadata"]


def test_p12_a_topic_that_comes_back_from_the_dead() -> None:
    history = good()
    history.topics_deleted["a"] = Outcome.OK
    assert names(history, topics={1: []}) == []
    assert names(history, topics={1: ["a"]}) == ["undead-topic"]


def test_p12_a_deletion_of_unknown_outcome_may_go_either_way() -> None:
    history = good()
    history.topics_deleted["a"] = Outcome.UNKNOWN
    assert names(history, topics={1: ["a"], 2: []}) == []


def test_a_partition_that_lost_too_many_copies_is_not_judged() -> None:
    assert check(good(), {P: {0: {}}}, ignored=[P], topics_by_node={}) == []
