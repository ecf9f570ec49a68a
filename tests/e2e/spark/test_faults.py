"""Reads while brokers die and leaders move, on executors in processes of their own; 20 rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]"])
def test_every_row_is_read_once_while_brokers_are_killed(
    spark_works: None, master: str, tmp_path: Path
) -> None:
    """In a process of its own: a session's master cannot be changed."""
    rounds = os.environ.get("ODRADEK_FAULT_ROUNDS", "20")
    told = subprocess.run(
        [sys.executable, "-m", "tests.e2e.spark.fault_rounds", master, rounds, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    print(told.stdout)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    assert f"{rounds} rounds, every row once" in told.stdout
