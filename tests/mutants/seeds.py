"""Run simulator seeds with the mutant of the environment; ends with 1 at the first violation."""

from __future__ import annotations

import logging
import sys

from tests.mutants.plugin import install_mutant  # first: nothing of the production is imported yet


def main() -> int:
    from tests.sim.simulation import run_seed

    logging.disable(logging.WARNING)
    return int(any(run_seed(seed).violations for seed in range(int(sys.argv[1]))))


if __name__ == "__main__":
    assert callable(install_mutant)
    sys.exit(main())
