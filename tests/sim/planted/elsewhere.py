"""The planted bugs that other tests find: those below the simulator, in the quorum and on the disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTest:
    """`plant` in `module` takes the rule out; a test there shows that its named test notices."""

    number: int
    name: str
    module: str
    plant: str


_QUORUM = "tests.unit.quorum.test_planted_bugs"
_LOG = "tests.unit.log.test_planted_bugs"

ELSEWHERE = {
    number: NamedTest(number=number, name=name, module=module, plant=plant)
    for number, name, module, plant in (
        (7, "fsync skipped on the metadata journal", _QUORUM, "no_write_barrier"),
        (8, "vote not persisted before the reply", _QUORUM, "volatile_vote"),
        (17, "CRC not checked at recovery", _LOG, "crc_not_checked_at_recovery"),
        (18, "retry after a failed fsync", _LOG, "sync_tried_again_after_a_failure"),
        (
            21,
            "commit index from a snapshot chunk",
            _QUORUM,
            "commit_index_from_snapshot_chunk",
        ),
        (28, "second sync after a failed one passes", _QUORUM, "second_sync_passes"),
        (
            29,
            "stale snapshot replaces a newer file",
            _QUORUM,
            "stale_snapshot_replaces_newer",
        ),
    )
}
