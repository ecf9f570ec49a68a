"""Each protection of the logs against a wrong image, switched off by a patch, is missed by its named test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from odradek_broker.log.directory.loading import DirectoryLoad
from odradek_broker.log.log_directory import LogDirectory
from odradek_protocol.metadata import delta
from odradek_protocol.metadata.delta import MetadataDelta
from tests.unit.replication import test_stray_logs

Patch = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], Coroutine[Any, Any, None]]


def image_that_lacks_a_topic_erases_it(patch: pytest.MonkeyPatch) -> None:
    def put_aside(
        self: LogDirectory, topic_id: Any, partition: Any, *, reason: str, now_ms: int
    ) -> None:
        self.delete(topic_id, partition)

    patch.setattr(LogDirectory, "put_aside", put_aside)


def snapshot_counts_as_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta, "MetadataDelta", lambda is_of_snapshot=False: MetadataDelta())


def unsynced_stray_vouches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectoryLoad, "_unsure_strays", lambda self: [])


NAMED: list[tuple[Patch, Test]] = [
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
