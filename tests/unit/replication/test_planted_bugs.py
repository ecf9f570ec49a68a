"""Planted bugs: a patch disables one protection of logs against wrong metadata or wrong bytes, and
the test named for it must then fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from odradek_broker.log.directory import loading
from odradek_broker.log.directory.loading import DirectoryLoad
from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.storage import StorageFailed
from odradek_broker.replication.client_requests import ProduceQueue
from odradek_broker.replication.partition_host import PartitionHost
from odradek_broker.replication.streams.follower_links import FollowerLinks
from odradek_broker.settled_clock import SettledClock
from odradek_protocol.metadata import image
from odradek_protocol.metadata.image import MetadataDelta
from tests.unit.replication import (
    test_damaged_logs,
    test_follower_links,
    test_shared_appends,
    test_stray_logs,
    test_upkeep,
)

pytestmark = pytest.mark.interpreted

Patch = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], Coroutine[Any, Any, None]]


def image_that_lacks_a_topic_erases_it(patch: pytest.MonkeyPatch) -> None:
    def put_aside(
        self: LogDirectory, topic_id: Any, partition: Any, *, reason: str, now_ms: int
    ) -> None:
        self.delete(topic_id, partition)

    patch.setattr(LogDirectory, "put_aside", put_aside)


def snapshot_counts_as_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(image, "MetadataDelta", lambda is_of_snapshot=False: MetadataDelta())


def unsynced_stray_vouches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectoryLoad, "_unsure_strays", lambda self: [])


def damage_ends_the_directory(patch: pytest.MonkeyPatch) -> None:
    def read_failed(self: PartitionHost, failure: StorageFailed) -> None:
        self._shared.storage_failed(StorageFailed(str(failure)))

    patch.setattr(PartitionHost, "read_failed", read_failed)


def retention_follows_every_jump_of_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SettledClock, "read", lambda self, *, now_ms, wall_ms: wall_ms)


def mark_of_damage_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "DAMAGED", "another file")


def judged_when_back_in_the_hot_lane(patch: pytest.MonkeyPatch) -> None:
    original = FollowerLinks._distance

    def distance(self: FollowerLinks, stream: Any, host: Any, records: int) -> None:
        self._returning.clear()
        original(self, stream, host, records)

    patch.setattr(FollowerLinks, "_distance", distance)


def batch_judged_before_the_producers_earlier_one_was_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProduceQueue, "_producer_ids", lambda self: [])


async def return_to_the_hot_lane() -> None:
    test_follower_links.test_what_is_appended_while_a_partition_returns_to_the_hot_lane_does_not_send_it_back()


NAMED: list[tuple[Patch, Test]] = [
    (judged_when_back_in_the_hot_lane, return_to_the_hot_lane),
    (
        batch_judged_before_the_producers_earlier_one_was_appended,
        test_shared_appends.test_each_duplicate_and_each_refusal_in_a_turn_is_its_own,
    ),
    (
        damage_ends_the_directory,
        partial(
            test_damaged_logs.test_damage_ends_one_replica_and_marks_it_where_others_are_in_sync,
            in_header=False,
        ),
    ),
    (
        retention_follows_every_jump_of_the_wall_clock,
        test_upkeep.test_a_wall_clock_that_is_set_forward_deletes_no_records_for_a_day,
    ),
    (
        mark_of_damage_ignored,
        test_damaged_logs.test_a_marked_log_is_verified_cut_and_told_as_lost_until_that_is_registered,
    ),
    (
        image_that_lacks_a_topic_erases_it,
        test_stray_logs.test_an_image_without_the_topic_erases_nothing_and_one_with_it_brings_the_log_back,
    ),
    (
        snapshot_counts_as_records,
        test_stray_logs.test_a_snapshot_that_lacks_topic_or_replica_puts_the_log_aside,
    ),
    (
        unsynced_stray_vouches,
        test_stray_logs.test_a_stray_that_was_not_synced_vouches_for_nothing_after_a_power_loss,
    ),
]


@pytest.mark.parametrize(("bug", "test"), NAMED, ids=[bug.__name__ for bug, _ in NAMED])
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Test
) -> None:
    asyncio.run(test())
    bug(monkeypatch)
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        asyncio.run(test())
