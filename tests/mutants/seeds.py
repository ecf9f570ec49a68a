"""Run simulator seeds and exit with 1 at the first violation: `seeds.py cluster 6` or `seeds.py quorum 6`."""

from __future__ import annotations

import logging
import sys


def main() -> int:
    simulator, count = sys.argv[1], int(sys.argv[2])
    logging.disable(logging.WARNING)
    if simulator == "quorum":
        from tests.sim.quorum.chaos import Chaos

        for seed in range(count):
            Chaos(seed, voters=3).run()  # raises AssertionError on a violation
        return 0
    from tests.sim.simulation import run_seed

    return int(any(run_seed(seed).violations for seed in range(count)))


if __name__ == "__main__":
    sys.exit(main())
