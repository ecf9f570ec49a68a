"""Each protection of the log, switched off by a patch, is missed by the named test that stands for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek_broker.log import recovery
from odradek_broker.log.segments.batch_walk import walk_headers
from odradek_broker.log.storage import DirectoryHealth, StorageFailed
from tests.unit.log import test_recovery, test_storage_faults

Patch = Callable[[pytest.MonkeyPatch], None]


def crc_not_checked_at_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "walk_verified", walk_headers)


def sync_tried_again_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def fail(self: DirectoryHealth, what: str, error: OSError) -> StorageFailed:
        return StorageFailed(f"{what}: {error}")

    patch.setattr(DirectoryHealth, "fail", fail)


def records_bits() -> None:
    test_recovery.test_the_log_ends_before_the_first_batch_with_a_wrong_bit(75)


NAMED: list[tuple[Patch, Callable[[], None]]] = [
    (crc_not_checked_at_recovery, records_bits),
    (
        sync_tried_again_after_a_failure,
        test_storage_faults.test_a_failed_sync_is_never_tried_again,
    ),
]


@pytest.mark.parametrize(("bug", "test"), NAMED, ids=[bug.__name__ for bug, _ in NAMED])
def test_the_named_test_catches_the_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Patch, test: Callable[[], None]
) -> None:
    test()
    bug(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
