"""Spark reads and writes while brokers die, leaders move and the driver is killed; executors are
processes of their own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.spark.fault_rounds import KINDS, RECORDS_A_ROUND, play


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_row_is_read_once_and_written_once_whatever_dies(
    spark_works: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rounds = int(os.environ.get("ODRADEK_FAULT_ROUNDS", "20"))
    outcome = play(tmp_path, rounds=rounds, master="local-cluster[2,1,1024]")
    record_property("sink_duplicates", outcome.sink_duplicates)
    assert outcome.is_exact, outcome
    assert outcome.sent >= rounds * RECORDS_A_ROUND
    assert rounds < len(KINDS) or Counter(outcome.faults).keys() == set(KINDS)
