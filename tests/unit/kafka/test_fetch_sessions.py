"""Fetch sessions (KIP-227): what a session stores, which partitions a response omits, and which clients get no
session.
"""

from __future__ import annotations

import struct

import pytest

from odradek_broker.kafka.requests.records.fetch_sessions import (
    PARTITION_BYTES,
    REST_MS_MIN,
    FetchSessions,
)
from odradek_protocol.identity import NO_TOPIC_ID, PartitionIndex, TopicName
from odradek_protocol.kafka import messages
from odradek_protocol.kafka.api_keys import ApiKey
from odradek_protocol.kafka.error_codes import ErrorCode
from odradek_protocol.kafka.fetch import (
    PARTITIONS_A_STEP,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from odradek_protocol.kafka.request_decoding import all_steps
from tests.unit.kafka.wire_client import WireClient, listening

ORDERS = TopicName("orders")
PARTITION = PARTITION_BYTES + len(ORDERS)


def request(
    session_id: int, epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    partitions = [FetchPartition(n, -1, offset, -1, -1, 1000) for n, offset in offsets.items()]
    return FetchRequest(
        replica_id=-1,
        wait_ms_max=0,
        bytes_min=1,
        bytes_max=1000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(ORDERS, NO_TOPIC_ID, partitions)] if partitions else [],
        forgotten=[ForgottenTopic(ORDERS, NO_TOPIC_ID, list(forgotten))] if forgotten else [],
        rack="",
    )


def begin(sessions: FetchSessions, wanted: FetchRequest, *, who: str = "a", now_ms: int = 0):  # type: ignore[no-untyped-def]
    return sessions.begin(wanted, principal=who, owner=who, uses_ids=False, now_ms=now_ms)


def test_an_incremental_request_stands_for_everything_that_is_remembered() -> None:
    sessions = FetchSessions()
    session = begin(sessions, request(0, 0, {0: 10, 1: 20})).session
    second = begin(sessions, request(session.id, 1, {1: 25}))
    assert second.is_incremental
    assert [(w.partition.partition, w.partition.offset) for w in second.wanted] == [
        (0, 10),
        (1, 25),
    ]
    third = begin(sessions, request(session.id, 2, {2: 5}, forgotten=(0,)))
    assert [w.partition.partition for w in third.wanted] == [1, 2]


def test_what_did_not_change_is_left_out_and_who_got_records_goes_last() -> None:
    sessions = FetchSessions()
    session = begin(sessions, request(0, 0, {0: 0, 1: 0})).session

    def note(partition: int, high_watermark: int, **changed: object) -> bool:
        told = {"error": ErrorCode.NONE, "log_start_offset": 0, "has_records": False}
        return session.note_response(  # type: ignore[no-any-return]
            (ORDERS, PartitionIndex(partition)),
            high_watermark=high_watermark,
            says_more=False,
            **{**told, **changed},
        )

    assert note(0, 5)
    assert not note(0, 5)
    assert note(0, 6)
    assert note(0, 6, log_start_offset=1)
    assert note(0, 6, log_start_offset=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert note(0, 6, log_start_offset=1), "the recovery must be told"
    assert note(0, 6, log_start_offset=1, has_records=True)
    assert [w.partition.partition for w in session.wanted()] == [1, 0]


@pytest.mark.parametrize(
    ("session_id", "epoch", "who", "error"),
    [
        (None, 2, "a", ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (None, 1, "mallory", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (12345, 1, "a", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_who_is_turned_away(session_id: int | None, epoch: int, who: str, error: ErrorCode) -> None:
    sessions = FetchSessions()
    session = begin(sessions, request(0, 0, {0: 0})).session
    begun = begin(sessions, request(session_id or session.id, epoch, {}), who=who)
    assert begun.error is error
    assert not begun.wanted


def test_a_final_epoch_ends_the_session_and_is_answered_whole() -> None:
    sessions = FetchSessions()
    session = begin(sessions, request(0, 0, {0: 0})).session
    final = begin(sessions, request(session.id, -1, {0: 7}))
    assert final.session is None
    assert [w.partition.offset for w in final.wanted] == [7]
    assert not len(sessions)


def test_sessions_are_bounded_and_only_rested_ones_give_way() -> None:
    sessions = FetchSessions(sessions_max=1)
    first = begin(sessions, request(0, 0, {0: 0})).session
    assert begin(sessions, request(0, 0, {0: 0}), now_ms=REST_MS_MIN - 1).session is None
    assert begin(sessions, request(0, 0, {0: 0}), now_ms=REST_MS_MIN).session is not None
    gone = begin(sessions, request(first.id, 1, {}))
    assert gone.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_what_all_sessions_remember_together_is_bounded() -> None:
    sessions = FetchSessions(bytes_max=10 * PARTITION, owner_bytes_max=10 * PARTITION)
    first = begin(sessions, request(0, 0, dict.fromkeys(range(6), 0)))
    assert first.session is not None
    second = begin(sessions, request(0, 0, dict.fromkeys(range(5), 0)))
    assert second.session is None, "no room: full requests, as without sessions"
    assert len(second.wanted) == 5
    third = begin(sessions, request(0, 0, dict.fromkeys(range(4), 0)), now_ms=1).session
    assert third is not None
    grown = begin(sessions, request(third.id, 1, {9: 0}), now_ms=1)
    assert grown.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    shrunk = begin(sessions, request(first.session.id, 1, {}, forgotten=(0, 1, 2)), now_ms=2)
    assert shrunk.error is ErrorCode.NONE
    assert begin(sessions, request(0, 0, dict.fromkeys(range(7), 0)), now_ms=3).session
    rested = REST_MS_MIN + 3
    assert begin(sessions, request(0, 0, dict.fromkeys(range(10), 0)), now_ms=rested).session
    assert len(sessions) == 1, "both of the others rested"
    begin(sessions, request(0, 0, dict.fromkeys(range(11), 0)), now_ms=2 * rested)
    assert len(sessions) == 1, "nobody goes for one that has no room anyway"


def test_one_owner_leaves_room_for_the_sessions_of_others() -> None:
    sessions = FetchSessions(bytes_max=10 * PARTITION, owner_bytes_max=6 * PARTITION)
    kept = [
        begin(sessions, request(0, 0, dict.fromkeys(range(3), 0)), who="greedy").session
        for _ in range(4)
    ]
    assert [one is not None for one in kept] == [True, True, False, False]
    assert begin(sessions, request(0, 0, dict.fromkeys(range(4), 0)), who="honest").session
    assert sessions.shares.total == 10 * PARTITION
    begin(sessions, request(kept[0].id, -1, {}), who="greedy")
    assert sessions.shares.of("greedy") == 3 * PARTITION


def test_long_names_count_by_their_length() -> None:
    sessions = FetchSessions()
    wanted = request(0, 0, {0: 0})
    wanted.topics[0] = wanted.topics[0]._replace(name=TopicName("x" * 249))
    assert begin(sessions, wanted).session is not None
    assert sessions.shares.total == PARTITION_BYTES + 249


def test_nothing_is_remembered_for_who_may_not_read_it() -> None:
    sessions = FetchSessions()

    def asked(session_id: int, epoch: int, partitions: tuple[int, ...]):  # type: ignore[no-untyped-def]
        return sessions.begin(
            request(session_id, epoch, dict.fromkeys(partitions, 0)),
            principal="a",
            owner="a",
            uses_ids=False,
            now_ms=0,
            may_read=lambda wanted: wanted.partition.partition < 5,
        )

    refused = asked(0, 0, (1, 7))
    assert refused.session is None
    assert len(refused.wanted) == 2, "each of them is answered all the same"
    session = asked(0, 0, (1, 2)).session
    assert asked(session.id, 1, (7,)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.shares.total) == (0, 0)


async def test_on_the_wire_an_unchanged_partition_is_not_told_again() -> None:
    async def fetch(client: WireClient, session_id: int, epoch: int) -> messages.Message:
        topics = (
            b"\x02\x07orders\x02" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1000) + b"\0\0"
            if epoch == 0
            else b"\x01"
        )
        head = struct.pack(">iiiibii", -1, 0, 0, 1000, 0, session_id, epoch)
        client.send(ApiKey.FETCH, 12, head + topics + b"\x01\x01\0")
        _, body = await client.receive()
        return messages.FetchResponse.decode(body[1:], version=12)

    async with listening() as server:
        client = await server.connect()
        first = await fetch(client, 0, 0)
        assert first.session_id > 0
        assert len(first.responses) == 1
        second = await fetch(client, first.session_id, 1)
        assert second.session_id == first.session_id
        assert second.responses == []
        server.partitions.records[ORDERS, 0] = [b"batch"]
        third = await fetch(client, first.session_id, 2)
        assert bytes(third.responses[0].partitions[0].records) == b"batch"
        wrong = await fetch(client, first.session_id, 2)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_that_is_dropped_while_it_is_made_leaves_nothing() -> None:
    """A long request is handled over several iterations of the event loop, and other requests run
    in between.
    """
    sessions = FetchSessions(sessions_max=1)
    steps = sessions.begin_steps(
        request(0, 0, dict.fromkeys(range(300), 0)),
        principal="a",
        owner="a",
        uses_ids=False,
        now_ms=0,
    )
    while not sessions.shares.of("a"):
        next(steps)
    begin(sessions, request(0, 0, {0: 0}), who="b", now_ms=2 * REST_MS_MIN)
    assert all_steps(steps).session is None
    assert sessions.shares.of("a") == 0
    assert sessions.shares.of("b") == PARTITION


def test_a_session_that_is_made_counts_from_its_first_step() -> None:
    sessions = FetchSessions(owner_bytes_max=500 * PARTITION, bytes_max=1000 * PARTITION)
    wanted = request(0, 0, dict.fromkeys(range(300), 0))
    begun = [
        sessions.begin_steps(wanted, principal="a", owner="a", uses_ids=False, now_ms=0)
        for _ in range(2)
    ]
    ended = {}
    while len(ended) < len(begun):
        for number, steps in enumerate(begun):
            if number not in ended:
                try:
                    next(steps)
                except StopIteration as done:
                    ended[number] = done.value
    assert [one.session is not None for one in ended.values()].count(True) == 1
    assert sessions.shares.of("a") == 300 * PARTITION


@pytest.mark.parametrize("is_new", [True, False])
def test_a_request_that_is_cut_off_leaves_no_session_of_uncounted_partitions(is_new: bool) -> None:
    sessions = FetchSessions()
    many = dict.fromkeys(range(3 * PARTITIONS_A_STEP), 0)
    session_id = 0 if is_new else begin(sessions, request(0, 0, {0: 0})).session.id
    wanted = request(session_id, 0 if is_new else 1, many)
    steps = sessions.begin_steps(wanted, principal="a", owner="a", uses_ids=False, now_ms=0)
    for _ in range(4):  # three to look at the partitions, the fourth to add some
        next(steps)
    assert len(sessions) == 1
    steps.close()  # the connection was lost
    assert (len(sessions), sessions.shares.total) == (0, 0)
