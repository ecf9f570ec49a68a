"""Offsets in transactions: when they take effect, which members may write them, and which fetches
wait for them.
"""

from __future__ import annotations

from random import Random

import pytest

from odradek_broker.coordinator_step import TransactionMarker
from odradek_broker.groups.messages import NeedsRegistration, OrphanEnded, Registered
from odradek_broker.groups.records import ClassicGroupRecord
from odradek_protocol.identity import GroupId, MemberId, TopicId, TopicName, TopicPartition
from odradek_protocol.kafka.error_codes import ErrorCode
from tests.unit.groups.conversation import DELAY_MS, FIRST, Conversation, catalog
from tests.unit.groups.offset_log import SECOND, OffsetLog

RETENTION_MS = 7 * 24 * 3_600_000
G = GroupId("g")


@pytest.mark.parametrize("is_commit", [False, True])
def test_offsets_count_when_the_transaction_commits(is_commit: bool) -> None:
    log = OffsetLog()
    log.commit(3)
    assert log.write(9) is ErrorCode.NONE
    assert log.committed() == {("g", FIRST): 3}
    assert log.end(is_commit=is_commit) is ErrorCode.NONE
    assert log.committed() == {("g", FIRST): 9 if is_commit else 3} == log.oracle()
    assert isinstance(log.entries[-1][0], TransactionMarker)


def test_a_marker_of_another_producer_changes_nothing() -> None:
    log = OffsetLog()
    log.write(9, producer_id=7)
    log.end(producer_id=8)
    assert not log.committed()


def test_two_transactions_commit_one_offset() -> None:
    """The later record counts, and not the later marker: that is what compaction keeps."""
    log = OffsetLog()
    log.write(5, producer_id=1)
    log.write(6, producer_id=2)
    log.end(producer_id=2)
    log.end(producer_id=1)
    assert log.committed() == {("g", FIRST): 6} == log.oracle()


def test_a_plain_commit_after_a_pending_one_stays() -> None:
    log = OffsetLog()
    log.write(5)
    log.commit(6)
    log.end()
    assert log.committed() == {("g", FIRST): 6} == log.oracle()


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_load_knows_what_is_pending(is_commit: bool) -> None:
    log = OffsetLog()
    log.commit(3)
    log.write(9)
    log.move()
    assert log.committed() == {("g", FIRST): 3}
    assert log.commit_in_transaction(10).partitions == {FIRST: ErrorCode.NONE}
    log.end(is_commit=is_commit)
    log.move()
    assert log.committed() == {("g", FIRST): 10 if is_commit else 3} == log.oracle()


def test_any_order_of_commits_and_markers_means_what_the_log_means() -> None:
    for seed in range(60):
        random, log = Random(seed), OffsetLog()
        epochs = dict.fromkeys((1, 2, 3), 0)
        for offset in range(40):
            producer_id = random.choice((1, 2, 3))
            partition = random.choice((FIRST, SECOND))
            match random.randrange(6):
                case 0:
                    log.commit(offset, partition)
                case 1 | 2 | 3:
                    log.write(offset, partition, producer_id=producer_id, epoch=epochs[producer_id])
                case 4:
                    epochs[producer_id] += 1
                    log.end(
                        is_commit=random.random() < 0.6,
                        producer_id=producer_id,
                        epoch=epochs[producer_id],
                    )
                case 5:
                    log.move()
            assert log.committed() == log.oracle(), seed
        assert log.committed(log.load()) == log.oracle(), seed


def test_the_first_commit_of_a_transaction_needs_a_registration_and_later_ones_do_not() -> None:
    log = OffsetLog()
    first = log.commit_in_transaction(1)
    assert isinstance(first, NeedsRegistration)
    assert not log.entries
    assert log.commit_in_transaction(1) == first, "one registration for each producer"
    registered = Registered(first.guard)
    assert log.commit_in_transaction(1, registered=registered).error is ErrorCode.NONE
    assert log.commit_in_transaction(2, SECOND).error is ErrorCode.NONE
    log.end()
    assert isinstance(log.commit_in_transaction(3, epoch=1), NeedsRegistration)


def test_yes_for_a_transaction_that_ended() -> None:
    """The transaction is aborted while the transaction coordinator's confirmation is under way, so
    its offsets must be refused.
    """
    log = OffsetLog()
    needs = log.commit_in_transaction(1)
    log.end(is_commit=False)
    again = log.commit_in_transaction(1, registered=Registered(needs.guard))
    assert isinstance(again, NeedsRegistration)
    assert again != needs
    assert [type(entry) for entry, *_ in log.entries] == [TransactionMarker]


def test_a_zombie_does_not_join_the_transaction_of_its_successor() -> None:
    log = OffsetLog()
    log.write(1, epoch=5)
    assert log.commit_in_transaction(2, epoch=4).error is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("was_committed", [False, True])
def test_an_orphaned_transaction_ends_before_the_next_one_begins(was_committed: bool) -> None:
    log = OffsetLog()
    log.write(1, epoch=5)
    needs = log.commit_in_transaction(2, epoch=6)
    registered = Registered(needs.guard, (5, was_committed))
    log.commit_in_transaction(2, epoch=6, registered=registered)
    assert log.orders == [OrphanEnded(7, 5, was_committed)]
    assert log.committed() == ({("g", FIRST): 1} if was_committed else {}) == log.oracle()
    log.end(epoch=7)
    assert log.committed() == {("g", FIRST): 2} == log.oracle()


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_hanging_transaction_ends_and_stable_fetches_go_on(is_commit: bool) -> None:
    log = OffsetLog()
    log.write(1, epoch=5)
    waiting = log.fetch_later([FIRST])
    assert waiting not in log.responses
    assert log.end_hanging(log.guard(), epoch=5, is_commit=is_commit) is ErrorCode.NONE
    assert not log.responses[waiting].unstable
    assert log.committed() == ({("g", FIRST): 1} if is_commit else {}) == log.oracle()


def test_a_transaction_whose_producer_came_back_does_not_hang() -> None:
    """It wrote, or its transaction ended and the next one began, while the coordinators were asked."""
    log = OffsetLog()
    log.write(1, epoch=5)
    guard = log.guard()
    log.write(2, SECOND, epoch=5)
    entries = list(log.entries)
    assert log.end_hanging(guard, epoch=5, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    guard = log.guard()
    log.end(epoch=6)
    log.write(3, epoch=6)
    assert log.end_hanging(guard, epoch=5, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    assert log.end_hanging(None, epoch=6, is_commit=False) is ErrorCode.INVALID_TXN_STATE
    assert log.entries[: len(entries)] == entries
    assert log.committed() == {("g", FIRST): 1, ("g", SECOND): 2} == log.oracle()
    log.end(epoch=7)
    assert log.committed() == {("g", FIRST): 3, ("g", SECOND): 2} == log.oracle()


def test_yes_for_a_shard_that_was_loaded_again() -> None:
    """The coordinator's confirmation was asked for by a shard that has been closed, and reaches its
    successor, in which a registration of the same producer is under way.
    """
    log = OffsetLog()
    needs = log.commit_in_transaction(1)
    log.shard = log.kind.create()
    assert isinstance(log.commit_in_transaction(1), NeedsRegistration)
    again = log.commit_in_transaction(1, registered=Registered(needs.guard))
    assert isinstance(again, NeedsRegistration)


@pytest.mark.parametrize(
    ("epoch", "is_bumped", "error"),
    [
        (6, True, ErrorCode.NONE),
        (5, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, False, ErrorCode.NONE),
        (6, False, ErrorCode.NONE),
        (4, False, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_which_markers_end_a_transaction(epoch: int, is_bumped: bool, error: ErrorCode) -> None:
    log = OffsetLog()
    log.write(1, epoch=5)
    assert log.end(epoch=epoch, is_bumped=is_bumped) is error
    assert log.committed() == ({("g", FIRST): 1} if error is ErrorCode.NONE else {})


def test_a_repeated_marker_is_written_again_and_changes_nothing() -> None:
    log = OffsetLog()
    log.write(1)
    log.end()
    log.commit(4)
    assert log.end() is ErrorCode.NONE
    assert log.committed() == {("g", FIRST): 4} == log.oracle()


def grouped() -> tuple[OffsetLog, str]:
    """Return the log of a classic group with two members in generation 1, and the id of its
    leader.
    """
    talk, log = Conversation(), OffsetLog()
    leader, _ = talk.stable_pair()
    log.entries = [(record, -1, -1) for record in talk.log]
    log.now_ms = talk.now_ms
    log.move()
    return log, leader


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ErrorCode.NONE),  # an old client names no member
        ({"generation_or_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_or_epoch": 1, "member_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        (
            {"generation_or_epoch": 1, "member_id": "leader", "instance_id": "i"},
            ErrorCode.UNKNOWN_MEMBER_ID,
        ),
        ({"generation_or_epoch": 0, "member_id": "leader"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_or_epoch": 2, "member_id": "leader"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_or_epoch": -1, "member_id": "leader"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_or_epoch": 1, "member_id": "leader"}, ErrorCode.NONE),
    ],
)
def test_a_consumer_that_lost_its_partitions_is_fenced(
    changes: dict[str, object], error: ErrorCode
) -> None:
    log, leader = grouped()
    if changes.get("member_id") == "leader":
        changes = changes | {"member_id": MemberId(leader)}
    assert log.write(5, **changes) is error


def test_a_rebalance_that_completes_does_not_refuse_offsets_of_a_transaction() -> None:
    talk = Conversation()
    leader, follower = talk.stable_pair()
    talk.leave((follower, None))
    talk.join(leader)
    talk.wait(DELAY_MS)
    log = OffsetLog()
    log.shard, log.now_ms = talk.shard, talk.now_ms
    generation = log.shard.table.classic(G).generation  # type: ignore[union-attr]
    assert talk.commit(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert log.write(5, generation_or_epoch=generation, member_id=leader) is ErrorCode.NONE


@pytest.mark.parametrize(("epoch", "error"), [(-1, None), (1, ErrorCode.UNKNOWN_MEMBER_ID)])
def test_a_group_that_does_not_exist_takes_offsets_of_clients_without_a_generation(
    epoch: int, error: ErrorCode | None
) -> None:
    log = OffsetLog()
    assert log.write(5, generation_or_epoch=epoch) is (error or ErrorCode.NONE)


def test_partitions_that_do_not_exist_are_refused_alone() -> None:
    log = OffsetLog()
    absent = TopicPartition(FIRST.topic, 9)  # type: ignore[arg-type]
    assert log.write(5, absent) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not log.entries


def test_a_stable_fetch_waits_for_the_end_of_the_transaction() -> None:
    log = OffsetLog()
    log.commit(3)
    log.write(9)
    stable, plain = log.fetch_later([FIRST]), log.fetch_later([FIRST], stable=False)
    other = log.fetch_later([SECOND])
    assert log.responses[plain].offsets[FIRST].offset == 3
    assert log.responses[other].offsets == {SECOND: None}
    assert stable not in log.responses
    log.end()
    fetched = log.responses[stable]
    assert (fetched.offsets[FIRST].offset, fetched.unstable) == (9, frozenset())


def test_a_stable_fetch_tells_unstable_partitions_when_its_time_is_over() -> None:
    log = OffsetLog()
    log.commit(3, SECOND)
    log.write(9)
    waiting = log.fetch_later(None)
    log.wait(499)
    assert waiting not in log.responses
    log.wait(1)
    fetched = log.responses[waiting]
    assert fetched.unstable == {FIRST}
    assert fetched.offsets[SECOND].offset == 3


def test_a_stable_fetch_waits_for_all_transactions() -> None:
    log = OffsetLog()
    log.write(1, producer_id=1)
    log.write(2, producer_id=2)
    waiting = log.fetch_later([FIRST])
    log.end(producer_id=1)
    assert waiting not in log.responses
    log.end(producer_id=2, is_commit=False)
    assert log.responses[waiting].offsets[FIRST].offset == 1 == log.oracle()["g", FIRST]


def test_a_later_plain_commit_makes_an_offset_stable() -> None:
    log = OffsetLog()
    log.write(1)
    log.commit(2)
    waiting = log.fetch_later([FIRST])
    assert log.responses[waiting].offsets[FIRST].offset == 2


def test_pending_offsets_keep_a_group_from_expiry_and_deletion() -> None:
    log = OffsetLog()
    log.commit(1)
    log.write(2)
    log.now_ms += 2 * RETENTION_MS
    log.take(log.shard.offsets.expire_offsets(wall_ms=log.now_ms))
    assert log.committed() == {("g", FIRST): 1}
    request_id = log.ask()
    log.take(log.shard.handle_delete_group(request_id, G))
    assert log.responses[request_id] is ErrorCode.NON_EMPTY_GROUP
    request_id = log.ask()
    log.take(log.shard.offsets.handle_delete_offsets(request_id, G, [FIRST, SECOND]))
    assert log.responses[request_id].partitions == {
        FIRST: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        SECOND: ErrorCode.NONE,
    }
    log.end()
    request_id = log.ask()
    log.take(log.shard.handle_delete_group(request_id, G))
    assert log.responses[request_id] is ErrorCode.NONE


def test_a_group_of_pending_offsets_alone_exists() -> None:
    log = OffsetLog()
    log.write(2)
    request_id = log.ask()
    log.take(log.shard.handle_delete_group(request_id, G))
    assert log.responses[request_id] is ErrorCode.NON_EMPTY_GROUP


def test_an_empty_group_with_pending_offsets_is_kept() -> None:
    log, leader = grouped()
    log.write(5, generation_or_epoch=1, member_id=leader)
    log.wait(60_000)
    log.wait(60_000)
    log.take(log.shard.offsets.expire_offsets(wall_ms=log.now_ms))
    assert "g" in log.shard.table.groups
    assert not any(
        isinstance(entry, ClassicGroupRecord) and entry.state is None for entry, *_ in log.entries
    )


@pytest.mark.parametrize("deleted", [None, {"t"}])
@pytest.mark.parametrize("is_pending", [True, False])
def test_offsets_of_a_deleted_topic_do_not_come_back_with_the_marker(
    deleted: set[TopicName] | None, is_pending: bool
) -> None:
    log = OffsetLog()
    log.write(2)
    if not is_pending:
        log.end()
    log.catalog = catalog(t=(TopicId(b"n" * 16), 2))
    log.take(log.shard.offsets.forget_deleted_topics(log.catalog, deleted))
    if is_pending:
        log.end()
    assert not log.committed()
    assert not log.oracle()
    log.move()
    assert not log.committed()


def test_a_rebalance_does_not_revoke_pending_offsets() -> None:
    """The new owner's fetch of stable offsets waits for the end of the previous owner's
    transaction.
    """
    log, leader = grouped()
    log.write(5, generation_or_epoch=1, member_id=leader)
    log.wait(60_000)
    waiting = log.fetch_later([FIRST])
    assert waiting not in log.responses
    log.end()
    assert log.responses[waiting].offsets[FIRST].offset == 5
