"""`python -m tests.sim.quorum --seeds 500` runs seeds with faults, prints the seeds that fail, and counts
the faults.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.sim.quorum.chaos import Chaos


def main() -> int:
    """Run the seeds that the arguments name. Return 0 if every seed passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--voters", type=int, default=3)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            result = Chaos(seed, voters=arguments.voters).run()
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed}: {error}")
        else:
            counts.update(result.counts, acknowledged=result.acknowledged, terms=result.terms)
    print(", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    print(f"{arguments.seeds - len(failed)} of {arguments.seeds} seeds passed; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
