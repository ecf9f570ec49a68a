"""The planted bugs that tests outside of the simulator find: those of the metadata quorum, which the simulator replaces
by a model, and number 124. (The simulator and tests.unit.log.test_planted_bugs both find bugs 17 and 18.)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTest:
    """A planted bug, and the test that finds it.

    The function `plant` in `module` removes the rule. A test in that module shows that the test named for this bug then
    fails.
    """

    number: int
    name: str
    module: str
    plant: str


_QUORUM = "tests.unit.quorum.test_planted_bugs"

ELSEWHERE = {
    number: NamedTest(number=number, name=name, module=module, plant=plant)
    for number, name, module, plant in (
        (7, "fsync skipped on the metadata journal", _QUORUM, "no_write_barrier"),
        (8, "vote not persisted before the reply", _QUORUM, "volatile_vote"),
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
        (  # no seed fails, because a follower whose lane changes too often still joins the ISR
            124,
            "a partition back in the hot lane may leave it at once",
            "tests.unit.replication.test_planted_bugs",
            "judged_when_back_in_the_hot_lane",
        ),
    )
}
