"""A controller refuses calls that are meant for another cluster."""

from __future__ import annotations

import pytest

from odradek_protocol.identity import MetadataIncarnationId
from odradek_runtime.cluster_identity import ClusterIdentity, must_wait, why_stranger

OURS, OTHER = MetadataIncarnationId(b"a" * 16), MetadataIncarnationId(b"b" * 16)


@pytest.mark.parametrize(
    ("caller", "log", "why"),
    [
        pytest.param(ClusterIdentity(), OURS, "", id="a program that sends nothing"),
        pytest.param(ClusterIdentity("c"), OURS, "", id="a broker that follows no log yet"),
        pytest.param(
            ClusterIdentity("c", metadata_incarnation_id=OURS), OURS, "", id="the same log"
        ),
        pytest.param(
            ClusterIdentity("c", metadata_incarnation_id=OURS), None, "", id="not yet replayed"
        ),
        pytest.param(
            ClusterIdentity("c", controller_ids=[1, 3]), OURS, "", id="some of the voters"
        ),
        pytest.param(
            ClusterIdentity("d"), OURS, "belongs to cluster d, this controller to c", id="cluster"
        ),
        pytest.param(
            ClusterIdentity("c", metadata_incarnation_id=OTHER),
            OURS,
            "Restore their data directories",
            id="another log",
        ),
        pytest.param(
            ClusterIdentity("c", controller_ids=[1, 2, 9]),
            OURS,
            "names the controllers 1, 2, 9, but this controller's voters are 1, 2, 3",
            id="other voters",
        ),
    ],
)
def test_who_is_a_stranger(
    caller: ClusterIdentity, log: MetadataIncarnationId | None, why: str
) -> None:
    told = why_stranger(
        caller.headers(), cluster_id="c", metadata_incarnation_id=log, voters=[1, 2, 3]
    )
    assert why in told
    assert bool(told) is bool(why)


def test_a_controller_that_has_read_of_no_incarnation_cannot_judge_who_follows_one() -> None:
    """Its log may be the caller's, or one that begins again, so it must neither refuse nor accept
    the caller.
    """
    follower = ClusterIdentity("c", metadata_incarnation_id=OURS).headers()
    assert must_wait(follower, metadata_incarnation_id=None)
    assert not must_wait(follower, metadata_incarnation_id=OURS)
    assert not must_wait(ClusterIdentity("c").headers(), metadata_incarnation_id=None)


@pytest.mark.parametrize(
    "headers",
    [
        [("odradek-controllers-bin", b"")],
        [("odradek-controllers-bin", b"x,,1,-4," + b"9" * 100)],
        [("odradek-controllers-bin", "text")],
        [("odradek-cluster-bin", "text")],
        [("user-agent", "x")],
    ],
)
def test_strange_headers_are_no_error(headers: list[tuple[str, str | bytes]]) -> None:
    assert not why_stranger(headers, cluster_id="c", metadata_incarnation_id=OURS, voters=[1, 2, 3])
