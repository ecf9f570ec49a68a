"""The two lanes (streams) from a follower to a leader: when a partition changes its lane, and that
it does not change for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from odradek_broker.access.quotas import TokenBucket
from odradek_broker.replication.streams.follower_links import FollowerLinks
from odradek_broker.replication.streams.follower_stream import HostKey, Lane
from odradek_protocol.identity import NO_BROKER, BrokerId

IDENTITY: Any = SimpleNamespace(broker_id=BrokerId(9))
KEY: HostKey = (b"t" * 16, 0)
HOST: Any = SimpleNamespace(partition=SimpleNamespace(topic_id=KEY[0], partition=KEY[1]))


class RecordedStream:
    """A stream that connects to nothing, and only records which partitions it carries."""

    def __init__(self, leader: int, lane: Lane, **_: object) -> None:
        self.leader, self.lane = leader, lane
        self.hosts: dict[HostKey, object] = {}
        self.is_closed = False
        self.throttle_changes = 0

    def throttle_changed(self) -> None:
        self.throttle_changes += 1

    def kick(self) -> None: ...

    def add(self, key: HostKey, host: object) -> None:
        self.hosts[key] = host

    def has(self, key: HostKey) -> bool:
        return key in self.hosts

    def remove(self, key: HostKey) -> None:
        self.hosts.pop(key, None)

    give_up = remove

    @property
    def is_empty(self) -> bool:
        return not self.hosts

    def end(self, on_ended: Callable[[RecordedStream], object]) -> None: ...

    async def close(self) -> None:
        self.is_closed = True


class Lanes:
    """The streams of one partition, which follows broker 1, and the reports of these streams."""

    def __init__(self) -> None:
        self.live: set[BrokerId] = set()
        self.links = FollowerLinks(
            identity=IDENTITY,
            endpoint_of=lambda _: None,
            is_live=self.live.__contains__,
            dial=None,  # type: ignore[arg-type]  # streams are recorded, not opened
            make_stream=RecordedStream,  # type: ignore[arg-type]
            behind_records=100,
            near_records=10,
        )
        self.links.follow(HOST, 1)

    @property
    def lane(self) -> Lane:
        (lane,) = (s.lane for s in self.links._streams.values() if s.has(KEY))
        return lane

    def is_behind(self, records: int) -> None:
        """Report how many records the partition is behind; if it then changes lanes, attach it in
        the new one.
        """
        self.links._distance(self.links._streams[1, self.lane], HOST, records)
        followed = [s for s in self.links._streams.values() if s.has(KEY)]
        if len(followed) == 2:
            self.links._ready(followed[1], KEY)


def test_a_partition_far_behind_changes_to_the_catch_up_lane_and_back_near_the_end() -> None:
    lanes = Lanes()
    lanes.is_behind(100)
    assert lanes.lane is Lane.HOT
    lanes.is_behind(101)
    assert lanes.lane is Lane.CATCH_UP
    lanes.is_behind(10)
    assert lanes.lane is Lane.CATCH_UP
    lanes.is_behind(9)
    assert lanes.lane is Lane.HOT


def test_what_is_appended_while_a_partition_returns_to_the_hot_lane_does_not_send_it_back() -> None:
    lanes = Lanes()
    lanes.is_behind(1_000)
    lanes.is_behind(0)
    lanes.is_behind(500)  # the first Attached in the hot lane
    assert lanes.lane is Lane.HOT
    lanes.is_behind(500)  # a later one: the stream broke, and it missed something
    assert lanes.lane is Lane.CATCH_UP


def test_a_partition_that_follows_another_leader_is_judged_at_once() -> None:
    lanes = Lanes()
    lanes.is_behind(1_000)
    lanes.is_behind(0)
    lanes.links.follow(HOST, 2)
    lanes.links.follow(HOST, 1)
    lanes.is_behind(500)
    assert lanes.lane is Lane.CATCH_UP


async def test_data_that_arrives_while_the_links_close_opens_no_stream() -> None:
    lanes = Lanes()
    stream = lanes.links._streams[BrokerId(1), Lane.HOT]
    await lanes.links.close()
    lanes.links._distance(stream, HOST, 1_000)
    lanes.links.follow(HOST, BrokerId(2))
    assert not lanes.links._streams


async def test_closing_the_links_ends_streams_that_still_linger() -> None:
    lanes = Lanes()
    stream = lanes.links._streams[BrokerId(1), Lane.HOT]
    lanes.links.follow(HOST, BrokerId(2))
    assert not stream.is_closed
    await lanes.links.close()
    assert stream.is_closed


def test_a_new_epoch_of_the_same_leader_attaches_again_in_the_lane_of_the_partition() -> None:
    lanes = Lanes()
    added: list[Lane] = []
    lanes.is_behind(1_000)
    for stream in lanes.links._streams.values():
        stream.add = lambda key, host, lane=stream.lane: added.append(lane)  # type: ignore
    lanes.links.follow(HOST, BrokerId(1))
    assert added == [Lane.CATCH_UP]


def test_a_broker_that_changed_is_dialled_at_once_in_both_lanes() -> None:
    lanes = Lanes()
    kicked: list[tuple[int, Lane]] = []
    lanes.links._open(BrokerId(1), Lane.CATCH_UP)
    lanes.links._open(BrokerId(2), Lane.HOT)
    for (leader, lane), stream in lanes.links._streams.items():
        stream.kick = lambda place=(leader, lane): kicked.append(place)  # type: ignore[method-assign, misc]
    lanes.links.broker_changed(BrokerId(1))
    assert kicked == [(1, Lane.HOT), (1, Lane.CATCH_UP)]
    lanes.links.broker_changed(BrokerId(3))
    assert len(kicked) == 2


def test_only_catch_up_lanes_share_the_throttle() -> None:
    made: dict[Lane, object] = {}

    def make(leader: int, lane: Lane, **parts: Any) -> RecordedStream:
        made[lane] = parts["throttle"]
        return RecordedStream(leader, lane)

    for limit in (0, 5_000):
        links = FollowerLinks(
            identity=IDENTITY,
            endpoint_of=lambda _: None,
            is_live=lambda _: False,
            dial=None,  # type: ignore[arg-type]
            make_stream=make,  # type: ignore[arg-type]
            catch_up_bytes_per_s=limit,
        )
        for lane in Lane:
            links._open(BrokerId(1), lane)
        assert made[Lane.HOT] is None
        throttle = made[Lane.CATCH_UP]
        assert isinstance(throttle, TokenBucket)
        if not limit:
            assert throttle.take(1 << 40, 0.0) == 0.0
        else:
            assert throttle.rate == limit
            assert throttle.take(limit, 0.0) == 0.0, "a second's worth is saved at first"
            assert throttle.take(limit, 0.0) == pytest.approx(1.0)


def test_the_throttle_changes_at_run_time_and_streams_hear_of_it() -> None:
    lanes = Lanes()
    throttle, (stream,) = lanes.links._throttle, lanes.links._streams.values()
    assert isinstance(stream, RecordedStream)
    for limit in (1_000, 1_000, 5_000, 0):
        lanes.links.limit_catch_up(limit)
        assert throttle.rate == (limit or math.inf)
    assert stream.throttle_changes == 3, "the second limit was the first"


def test_a_stream_that_no_partition_uses_is_ended_and_opened_anew_when_one_comes() -> None:
    lanes = Lanes()
    before = lanes.links._streams[BrokerId(1), Lane.HOT]
    ended: list[object] = []
    before.end = lambda on_ended: ended.append(before)  # type: ignore[method-assign,assignment]
    lanes.links.follow(HOST, NO_BROKER)
    assert ended == [before]
    assert lanes.links._streams == {}
    lanes.links.follow(HOST, BrokerId(1))
    assert lanes.links._streams[BrokerId(1), Lane.HOT] is not before


def test_a_kept_stream_stays_open_without_partitions_until_its_broker_is_down() -> None:
    lanes = Lanes()
    one, peer = BrokerId(1), BrokerId(2)
    lanes.live |= {one, peer, BrokerId(3), IDENTITY.broker_id}
    lanes.links.share((one, peer, IDENTITY.broker_id))
    lanes.links.follow(HOST, NO_BROKER)
    lanes.links.broker_changed(BrokerId(3))
    assert set(lanes.links._streams) == {(one, Lane.HOT), (peer, Lane.HOT)}
    lanes.links.follow(HOST, peer)
    lanes.live.discard(peer)
    lanes.links.broker_changed(peer)
    assert (peer, Lane.HOT) in lanes.links._streams, "it still carries a partition"
    lanes.links.follow(HOST, NO_BROKER)
    assert set(lanes.links._streams) == {(one, Lane.HOT)}
    lanes.live.discard(one)
    lanes.links.broker_changed(one)
    assert not lanes.links._streams
    lanes.live.add(one)
    lanes.links.broker_changed(one)
    assert set(lanes.links._streams) == {(one, Lane.HOT)}
