"""Mean delay per carrier and hour over all flights: stream, live and backfill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from odradek.embedded import EmbeddedCluster
from tests.e2e.spark.flight_facts import Flight, delays, latest_by_key, scheduled
from tests.e2e.spark.pipeline_runs import dropped, run_pipeline
from tests.e2e.spark.topics import Topics


def _assert_table(
    table: dict[str, Flight], expected: dict[tuple[str, str], tuple[int, int]]
) -> None:
    found = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"])
        for row in table.values()
    }
    assert found == expected
    for row in table.values():
        assert row["delay_mean_min"] == row["delay_sum_min"] / row["flights"]


def test_the_streamed_table_is_the_one_worked_out_directly(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topics: Topics,
    new_topic: Callable[..., str],
    flights_topic: str,
    flights: list[Flight],
    tmp_path: Path,
) -> None:
    target = new_topic(partitions=2)
    progress = run_pipeline(
        spark,
        "delay-windows",
        cluster.bootstrap,
        tmp_path / "c",
        *("--from", flights_topic, "--to", target, "--batch-offsets-max", "120000"),
    )
    assert sum(p.numInputRows for p in progress) == len(flights) == 336_776
    assert dropped(progress) == 0
    _assert_table(latest_by_key(topics.pairs(target)), delays(flights))


@pytest.mark.long
def test_a_backfill_by_time_makes_the_same_windows(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topics: Topics,
    new_topic: Callable[..., str],
    flights_topic: str,
    flights: list[Flight],
    tmp_path: Path,
) -> None:
    target = new_topic(partitions=2)
    run_pipeline(
        spark,
        "delay-backfill",
        cluster.bootstrap,
        tmp_path / "c",
        *("--from", flights_topic, "--to", target),
        *("--since", "2013-06-01T00:00", "--until", "2013-07-01T00:00"),
    )
    june = [flight for flight in flights if scheduled(flight).month == 6]
    _assert_table(latest_by_key(topics.pairs(target)), delays(june))
