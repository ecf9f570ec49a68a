"""Pipelines run as processes over all flights, and are killed, stopped in a controlled way, and
restarted from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.pipeline_cases import CASES, Case, Scene
from tests.e2e.spark.short_jvm import AS_ARGUMENTS
from tests.e2e.spark.topics import Topics

LOCAL = (
    *("--master", "local[2]", "--trigger-s", "0"),
    *("--spark", "spark.ui.enabled=false", "--spark", "spark.sql.shuffle.partitions=2"),
    *("--spark", "spark.ui.showConsoleProgress=false"),
    *AS_ARGUMENTS,
)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scene", ["all"], indirect=True)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.is_batch])
def test_a_pipeline_is_exact_after_kill_9_and_after_sigterm(
    scene: Scene,
    name: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    case = CASES[name]
    arguments = (*_arguments(case, scene, tmp_path), *case.limit(scene))
    with DriverProcess(tmp_path / "log", *arguments) as driver:
        driver.wait_for_batches(1)
        driver.kill()
    with DriverProcess(tmp_path / "log", *arguments) as driver:
        driver.wait_for_batches(1)
        driver.terminate()
        assert driver.wait() == 0, driver.log()
        assert driver.milestones() == ["started", "stopping", "stopped"]
        read = driver.rows()
        assert driver.dropped() == 0
    with DriverProcess(tmp_path / "log", *arguments, "--available-now") as driver:
        assert driver.wait(600) == 0, driver.log()
        assert driver.milestones() == ["started", "done"]
        assert 0 < driver.rows() < case.rows(scene), "it began at the start again"
        assert read + driver.rows() <= case.rows(scene)
        assert driver.dropped() == 0
    again = case.check(scene)
    record_property("written_again", again)
    print(f"{name}: {case.rows(scene)} rows, {again} written again")
    assert again == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scene", ["all"], indirect=True)
def test_a_batch_is_cancelled_by_sigterm_and_whole_when_it_is_run_again(
    scene: Scene, topics: Topics, tmp_path: Path
) -> None:
    case = CASES["delay-backfill"]
    arguments = _arguments(case, scene, tmp_path)
    with DriverProcess(tmp_path / "log", *arguments) as driver:
        driver.wait_until(lambda: sum(topics.ends(scene.target).values()) > 0)
        driver.kill()
    with DriverProcess(tmp_path / "log", *arguments) as driver:
        driver.wait_until(lambda: driver.milestones() == ["started"])
        driver.terminate()
        assert driver.wait() == 0, driver.log()
        assert driver.milestones() == ["started", "stopping", "stopped"]
    with DriverProcess(tmp_path / "log", *arguments) as driver:
        assert driver.wait() == 0, driver.log()
        assert driver.milestones() == ["started", "done"]
    case.check(scene)


@pytest.mark.long
def test_sigterm_ends_a_pipeline_and_it_goes_on_later(scene: Scene, tmp_path: Path) -> None:
    case = CASES["dead-letters"]
    arguments = _arguments(case, scene, tmp_path)
    with DriverProcess(tmp_path / "log", *arguments, *case.limit(scene)) as driver:
        driver.wait_for_batches(1)
        driver.terminate()
        assert driver.wait() == 0, driver.log()
    assert driver.lines[0] == "pipeline dead-letters"
    assert driver.lines[1].startswith("  1. read topic")
    assert driver.milestones() == ["started", "stopping", "stopped"]
    read = driver.rows()
    with DriverProcess(tmp_path / "log", *arguments, "--available-now") as driver:
        assert driver.wait() == 0, driver.log()
    assert 0 < driver.rows() <= case.rows(scene) - read
    case.check(scene)


def _arguments(case: Case, scene: Scene, directory: Path) -> tuple[str, ...]:
    return (
        *(case.pipeline, *case.arguments(scene), "--bootstrap", scene.topics.bootstrap),
        *("--checkpoint", str(directory / "checkpoint"), *LOCAL),
    )
