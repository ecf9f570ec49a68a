"""`odradek storage strays` lists the logs that a broker set aside, and removes them when a person
confirms it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from odradek_broker.log.log_directory import LogDirectory
from odradek_broker.log.storage import DiskStorage
from tests.unit.log.material import PARTITION, TOPIC_ID, Broker

CLI = [sys.executable, "-m", "odradek.cli.main", "storage", "strays"]


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "--data-dir", str(path), *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def directory(tmp_path: Path) -> LogDirectory:
    """Return the data directory of a running broker, with one stray log."""
    broker = Broker(DiskStorage(), path=tmp_path / "data")
    broker.append(3)
    broker.directory.put_aside(TOPIC_ID, PARTITION, reason="nobody claims it", now_ms=1_000)
    return broker.directory


def test_strays_are_listed_and_the_one_that_is_named_is_removed(directory: LogDirectory) -> None:
    (row,) = json.loads(run(directory.path, "-o", "json").stdout)
    assert (row["topic"], row["partition"], row["log_end"]) == ("flights", 0, 3)
    assert row["since"] == "1970-01-01T00:00:01+00:00"
    assert row["reason"] == "nobody claims it"
    assert "flights" in run(directory.path).stdout
    assert (directory.path / row["name"]).exists()
    assert run(directory.path, "--remove", row["name"]).returncode == 0
    assert json.loads(run(directory.path, "-o", "json").stdout) == []
    assert not [path.name for path in directory.path.iterdir() if "-0." in path.name]


def test_all_are_removed_at_once(directory: LogDirectory) -> None:
    assert run(directory.path, "--remove-all").returncode == 0
    assert "no stray logs" in run(directory.path).stderr
    directory.strays.forget_removed()
    assert not len(directory.strays), "the broker notices"


def test_what_is_not_there_is_refused_by_name(directory: LogDirectory, tmp_path: Path) -> None:
    done = run(directory.path, "--remove", "flights-0")
    assert done.returncode == 1
    assert "has no stray called flights-0" in done.stderr
    assert "is not the data directory of a broker" in run(tmp_path).stderr
