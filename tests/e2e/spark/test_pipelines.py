"""The output of each pipeline over the flights is compared with plain Python: a sample by default,
all 336,776 flights with `long`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from odradek.embedded import EmbeddedCluster
from odradek_pipelines.files_to_topic import PIPELINE as FILES_TO_TOPIC
from odradek_pipelines.pipeline import parse_settings
from tests.e2e.spark.flight_facts import delays, latest_by_key, scheduled
from tests.e2e.spark.pipeline_cases import CASES, Scene
from tests.e2e.spark.pipeline_runs import dropped, run_pipeline
from tests.e2e.spark.topics import Output, Topics

SAMPLED = ("sample", pytest.param("all", marks=[pytest.mark.long, pytest.mark.timeout(1200)]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scene", SAMPLED, indirect=True)
def test_a_pipeline_makes_what_plain_python_makes(
    spark: SparkSession, cluster: EmbeddedCluster, scene: Scene, name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    arguments = case.arguments(scene)
    checkpoint = tmp_path / "checkpoint"
    progress = run_pipeline(spark, case.pipeline, cluster.bootstrap, checkpoint, *arguments)
    if not case.is_batch:
        assert sum(p.numInputRows for p in progress) == case.rows(scene)
    assert dropped(progress) == 0
    assert case.check(scene) == 0


@pytest.mark.parametrize("name", ["delay-windows", "aircraft-rotations", "dead-letters"])
def test_a_batch_that_spark_has_not_noted_is_run_again_and_written_once(
    spark: SparkSession, cluster: EmbeddedCluster, scene: Scene, name: str, tmp_path: Path
) -> None:
    """The driver dies when the cluster has completed the batch, but Spark's commit log does not
    have it yet.
    """
    case = CASES[name]
    arguments = (*case.arguments(scene), *case.limit(scene))
    checkpoint = tmp_path / "checkpoint"
    place = (spark, case.pipeline, cluster.bootstrap, checkpoint)
    first = run_pipeline(*place, *arguments)
    written = len(scene.topics.read(scene.target))
    commits = checkpoint / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    again = run_pipeline(*place, *arguments)
    assert {p.batchId for p in again} & {p.batchId for p in first} == {int(last.name)}
    assert len(scene.topics.read(scene.target)) == written
    assert case.check(scene) == 0


def test_a_backfill_has_the_records_that_came_late_too(
    spark: SparkSession, cluster: EmbeddedCluster, scene: Scene, topics: Topics, tmp_path: Path
) -> None:
    months = {
        month: [f for f in scene.flights if f["month"] == month][:20] for month in (9, 11, 12)
    }
    source = topics.new(partitions=1)
    for month in (9, 12, 11):
        topics.send(
            source,
            [
                Output(json.dumps(f).encode(), timestamp_ms=int(scheduled(f).timestamp() * 1000))
                for f in months[month]
            ],
        )
    arguments = ("--from", source, "--to", scene.target)
    stretch = ("--since", "2013-09-01T00:00", "--until", "2013-12-01T00:00")
    place = (spark, "delay-backfill", cluster.bootstrap, tmp_path / "c")
    run_pipeline(*place, *arguments, *stretch)
    windows = latest_by_key(topics.pairs(scene.target))
    counted = {
        (window["carrier"], window["hour"]): (window["flights"], window["delay_sum_min"])
        for window in windows.values()
    }
    assert counted == delays([*months[9], *months[11]])


def test_lines_of_text_are_records_and_nothing_is_fetched_twice(
    spark: SparkSession, cluster: EmbeddedCluster, scene: Scene, topics: Topics, tmp_path: Path
) -> None:
    (scene.ftp_directory / "a.txt").write_text("one\ntwo\n")
    place = (spark, "files-to-topic", cluster.bootstrap, tmp_path / "c")
    run_pipeline(*place, "--ftp", scene.ftp, "--to", scene.target)
    (scene.ftp_directory / "b.txt").write_text("three\n")
    (scene.ftp_directory / ".c.txt.part").write_text("half a line")
    run_pipeline(*place, "--ftp", scene.ftp, "--to", scene.target)
    lines = sorted(value or b"" for _, value in topics.pairs(scene.target))
    assert lines == [b"one", b"three", b"two"]


def test_a_csv_directory_without_a_file_is_said_so(spark: SparkSession, tmp_path: Path) -> None:
    arguments = ("--bootstrap", "127.0.0.1:1", "--directory", str(tmp_path), "--csv")
    settings = parse_settings(FILES_TO_TOPIC, arguments)
    with pytest.raises(ValueError, match="no file in"):
        FILES_TO_TOPIC.start(spark, settings)


def test_values_that_are_null_make_no_line(
    spark: SparkSession, cluster: EmbeddedCluster, scene: Scene, topics: Topics, tmp_path: Path
) -> None:
    row = json.dumps({"seq": 1}).encode()
    topics.send(scene.target, [Output(row), Output(None, key=b"gone")])
    arguments = ("--from", scene.target, "--ftp", scene.ftp)
    run_pipeline(spark, "topic-to-files", cluster.bootstrap, tmp_path / "c", *arguments)
    assert (scene.ftp_directory / "batch-000000000.txt").read_bytes() == row + b"\n"
