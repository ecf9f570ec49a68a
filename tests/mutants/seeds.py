"""Runs seeds of a simulator; the exit status is 1 at the first violation."""

from __future__ import annotations

import logging


def main(arguments: list[str]) -> int:
    """Run the first seeds of a simulator, for example `["cluster", "6"]` or `["quorum", "6"]`."""
    simulator, count = arguments[0], int(arguments[1])
    logging.disable(logging.WARNING)
    if simulator == "quorum":
        from tests.sim.quorum.chaos import Chaos

        for seed in range(count):
            Chaos(seed, voters=3).run()  # raises AssertionError on a violation
        return 0
    from tests.sim.simulation import run_seed

    return int(any(run_seed(seed).violations for seed in range(count)))
