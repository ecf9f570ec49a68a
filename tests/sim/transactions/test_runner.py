"""The runner of many seeds."""

from __future__ import annotations

from tests.sim.transactions.__main__ import in_new_workers


def test_seeds_beyond_the_number_for_one_worker_run_in_new_workers() -> None:
    results = in_new_workers(str, range(7), 2, per_worker=1)
    assert list(results) == ["0", "1", "2", "3", "4", "5", "6"]
