"""Each example runs twice, as its README says, and prints the promised output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "clients/python/examples"
EXPECTED = {
    "activity_tracking.py": " clicks, 23 sessions of 10 users",
    "metrics_collection.py": "4000 samples of 20 hosts; the busiest is host-",
    "application_logs.py": "330 lines, 30 errors, 0 dropped",
    "json_to_parquet.py": ": sensor string, celsius double, at timestamp[ms, tz=UTC]",
    "publish_subscribe.py": "40 orders for 1568.00 in all; a bridge: no such item",
}
# Programs that run in test_recipes.py, or in the test that the comment beside them names.
RECIPES = (
    "at_least_once.py",
    "at_most_once.py",
    "fastapi_service.py",  # tests/unit/sdk/test_example_programs.py
    "exactly_once_with_the_result.py",
    "idempotent_consumer.py",
    "retrying_worker.py",
    "transactional_copy.py",  # tests/unit/sdk/test_transactional_copy.py
)


def test_every_example_has_a_test_and_a_line_in_the_readme() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted([*EXPECTED, *RECIPES])
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in [*EXPECTED, *RECIPES])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_example_does_what_it_says(bootstrap: str, name: str) -> None:
    for _ in range(2):  # the second time its topics exist
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)],
            env={**os.environ, "ODRADEK_BOOTSTRAP": bootstrap},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert EXPECTED[name] in done.stdout
        assert done.stderr == ""
