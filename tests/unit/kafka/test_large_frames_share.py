"""Memory for large frames that are still arriving: each owner has a share, connections take turns,
and a minimum rate applies.
"""

from __future__ import annotations

from odradek_broker.kafka.connection_times import (
    FIRST_FRAME_MS_MAX,
    FRAME_BYTES_MIN,
    STALLED_FRAME_MS_MAX,
    ConnectionTimes,
)
from odradek_broker.kafka.frames import ArrivingBytes

MIB = 1 << 20
SMALL = ArrivingBytes.SMALL_BYTES


class Sender:
    """A connection that is sending a large frame."""

    def __init__(self, arriving: ArrivingBytes, owner: str) -> None:
        self.arriving = arriving
        self.owner = owner
        self.held = 0
        self.is_closed = False
        self.is_at_file = False

    def read_on(self) -> None:
        self.arriving.hold(self, self.held)

    def give_up(self, reason: str) -> None:
        self.ends()
        self.is_closed = True

    def brings(self, size_bytes: int) -> bool:
        """Send this many bytes if the connection is read; return whether it was."""
        if self.held > SMALL and not self.arriving.may_read(self):
            return False
        self.held += size_bytes
        self.arriving.hold(self, self.held)
        return True

    def ends(self) -> None:
        self.held = 0
        self.arriving.hold(self, 0)


def test_one_owner_leaves_room_for_the_frames_of_others() -> None:
    arriving = ArrivingBytes(256 * MIB)
    greedy = [Sender(arriving, "mallory") for _ in range(4)]
    for one in greedy:
        while one.held < 90 * MIB and one.brings(MIB):
            pass
    assert arriving.total_bytes < 32 * MIB + 91 * MIB, "a share, and one frame that goes on"
    honest = Sender(arriving, "alice")
    for _ in range(32):
        assert honest.brings(MIB)
    honest.ends()


def test_frames_that_stop_in_the_middle_do_not_add_up() -> None:
    """One connection after the other sends up to 90 MiB, and then only single bytes."""
    arriving = ArrivingBytes(256 * MIB)
    greedy = [Sender(arriving, "mallory") for _ in range(20)]
    for _ in range(60):
        for one in greedy:
            while not one.is_closed and one.held < 90 * MIB and one.brings(MIB):
                pass
        arriving.rotate()
        assert arriving.total_bytes <= 32 * MIB + 91 * MIB
    assert sum(one.is_closed for one in greedy) > 10


def test_a_newcomer_of_the_same_owner_gets_through_a_pool_full_of_idle_frames() -> None:
    arriving = ArrivingBytes(2 * MIB)
    idle = [Sender(arriving, "host 127.0.0.1") for _ in range(4)]
    for one in idle:
        one.brings(MIB)
    honest = Sender(arriving, "host 127.0.0.1")
    honest.brings(SMALL + 1)
    turns = 0
    while honest.held < MIB:
        if not honest.brings(SMALL):
            arriving.rotate()
            turns += 1
        assert turns < 10
    for one in (honest, *idle):
        one.ends()
    assert arriving.total_bytes == 0


def test_an_owner_above_its_share_is_read_while_others_upload_without_a_pause() -> None:
    arriving = ArrivingBytes(256 * MIB)
    busy = [Sender(arriving, "alice") for _ in range(4)]
    for one in busy:
        while one.held < 20 * MIB and one.brings(MIB):
            pass
    assert sum(one.held for one in busy) > 32 * MIB, "more than the share"
    others = [Sender(arriving, "bob") for _ in range(2)]
    others[0].brings(MIB)
    for turn in range(1, 80):  # One of the two frames is always unfinished.
        assert others[turn % 2].brings(MIB)
        others[1 - turn % 2].ends()
        for one in busy:
            if one.held and one.brings(MIB) and one.held >= 20 * MIB:
                one.ends()
        arriving.rotate()
    assert not any(one.held for one in busy)


def test_the_chosen_connection_makes_way_when_its_owner_is_within_its_share_again() -> None:
    arriving = ArrivingBytes(64 * MIB)
    alice = [Sender(arriving, "alice"), Sender(arriving, "alice")]
    bob = [Sender(arriving, "bob"), Sender(arriving, "bob")]
    for one in (*alice, *bob):
        one.brings(5 * MIB)
    assert alice[0].brings(MIB), "one connection is chosen"
    assert not bob[0].brings(MIB)
    alice[1].ends()
    assert alice[0].brings(MIB), "alice has less than a share of 8 MiB"
    assert bob[0].brings(MIB)


def test_a_connection_that_a_quota_mutes_is_not_chosen_and_not_closed() -> None:
    arriving = ArrivingBytes(64 * MIB)
    muted, other = Sender(arriving, "alice"), Sender(arriving, "alice")
    muted.brings(5 * MIB)
    other.brings(6 * MIB)
    assert muted.brings(SMALL), "it has the fewest bytes, and is chosen"
    arriving.mute(muted)
    for _ in range(3):
        assert other.brings(MIB)
        arriving.rotate()
    assert not muted.is_closed
    other.ends()
    assert muted.brings(MIB)


def test_one_frame_larger_than_all_room_arrives() -> None:
    arriving = ArrivingBytes(MIB)
    sender = Sender(arriving, "alice")
    while sender.held < 10 * MIB:
        assert sender.brings(MIB)
        arriving.rotate()


def test_a_byte_now_and_then_does_not_keep_a_frame_alive() -> None:
    times = ConnectionTimes(0)
    slow_at = next(
        now_ms
        for now_ms in range(1000, 200_000, 1000)
        if times.frame_is_slow(1, MIB + now_ms // 1000, now_ms, is_read=True)
    )
    assert STALLED_FRAME_MS_MAX <= slow_at <= STALLED_FRAME_MS_MAX + 3000


def test_a_slow_line_brings_a_large_frame_in_time() -> None:
    times = ConnectionTimes(0)
    for now_ms in range(1000, 600_000, 1000):
        held = now_ms // 1000 * (FRAME_BYTES_MIN // 20)
        assert not times.frame_is_slow(1, held, now_ms, is_read=True)


def test_frame_after_frame_is_never_slow_though_each_is_met_in_the_middle() -> None:
    times = ConnectionTimes(0)
    for number in range(1, 600):
        assert not times.frame_is_slow(number, 10_000, number * 1000, is_read=True)


def test_who_is_not_read_does_not_grow_old() -> None:
    times = ConnectionTimes(0)
    for now_ms in range(1000, 300_000, 1000):
        assert not times.frame_is_slow(1, MIB, now_ms, is_read=False)
    assert not times.begins_too_slowly(now_ms + FIRST_FRAME_MS_MAX - 1000)
