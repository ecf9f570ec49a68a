"""Pipelines as processes: killed and started again from the checkpoint, and stopped in good order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.flight_facts import Flight, delays, latest_by_key
from tests.e2e.spark.topics import Output, Topics

LOCAL = (
    "--master",
    "local[2]",
    "--spark",
    "spark.ui.enabled=false",
    "--spark",
    "spark.sql.shuffle.partitions=2",
)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_windows_are_exact_after_the_driver_was_killed_and_started_again(
    cluster: EmbeddedCluster,
    topics: Topics,
    new_topic: Callable[..., str],
    flights_topic: str,
    flights: list[Flight],
    tmp_path: Path,
) -> None:
    target = new_topic(partitions=2)
    arguments = (
        *("--bootstrap", cluster.bootstrap, "--from", flights_topic, "--to", target),
        *("--checkpoint", str(tmp_path / "c"), "--batch-offsets-max", "40000"),
        *("--available-now", *LOCAL),
    )
    for batches in (2, 3):
        with DriverProcess(tmp_path / "log", "delay-windows", *arguments) as driver:
            driver.wait_for_batches(batches)
            driver.kill()
    with DriverProcess(tmp_path / "log", "delay-windows", *arguments) as driver:
        assert driver.wait() == 0, driver.log()
        assert driver.events[-1]["event"] == "done"
        progress = [event for event in driver.events if event["event"] == "progress"]
    assert sum(event["dropped_by_watermark"] for event in progress) == 0
    assert sum(event["rows"] for event in progress) < len(flights), "it began again at the start"
    found = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"])
        for row in latest_by_key(topics.pairs(target)).values()
    }
    assert found == delays(flights)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_sink_loses_nothing_when_the_driver_is_killed_and_duplicates_are_counted(
    cluster: EmbeddedCluster,
    topics: Topics,
    new_topic: Callable[..., str],
    flights_topic: str,
    flights: list[Flight],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    target = new_topic(partitions=2)
    arguments = (
        *("--bootstrap", cluster.bootstrap, "--from", flights_topic, "--to", target),
        *("--checkpoint", str(tmp_path / "c"), "--batch-offsets-max", "50000"),
        *("--available-now", "--dead", f"{target}.dead", *LOCAL),
    )
    for batches in (1, 2):
        with DriverProcess(tmp_path / "log", "dead-letters", *arguments) as driver:
            driver.wait_for_batches(batches)
            driver.kill()
    with DriverProcess(tmp_path / "log", "dead-letters", *arguments) as driver:
        assert driver.wait() == 0, driver.log()
    seen = Counter(json.loads(value or b"{}")["seq"] for _, value in topics.pairs(target))
    assert seen.keys() == {flight["seq"] for flight in flights}
    duplicates = sum(seen.values()) - len(seen)
    record_property("duplicates", duplicates)
    print(f"the sink wrote {len(seen)} records, {duplicates} of them again")
    assert duplicates <= 2 * 50_000, "more than the batches that were under way"


@pytest.mark.long
def test_sigterm_ends_a_pipeline_after_its_batch_and_it_goes_on_later(
    cluster: EmbeddedCluster,
    topics: Topics,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = new_topic(partitions=1), new_topic(partitions=1)
    topics.send(source, [Output(json.dumps({"seq": i}).encode()) for i in range(10)])
    arguments = (
        *("--bootstrap", cluster.bootstrap, "--from", source, "--to", target),
        *("--checkpoint", str(tmp_path / "c"), "--dead", target, *LOCAL),
    )
    with DriverProcess(tmp_path / "log", "dead-letters", *arguments) as driver:
        driver.wait_for_batches(1)
        driver.terminate()
        assert driver.wait() == 0, driver.log()
    assert driver.lines[0] == "pipeline dead-letters"
    assert driver.lines[1].startswith("  1. read topic")
    assert [event["event"] for event in driver.events[-2:]] == ["stopping", "stopped"]
    topics.send(source, [Output(json.dumps({"seq": 10}).encode())])
    with DriverProcess(tmp_path / "log", "dead-letters", *arguments, "--available-now") as driver:
        assert driver.wait() == 0, driver.log()
    assert sum(e["rows"] for e in driver.events if e["event"] == "progress") == 1
    assert len(topics.pairs(target)) == 11
