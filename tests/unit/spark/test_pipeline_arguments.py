"""A wrong command line of a pipeline ends with a one-sentence error before Spark starts."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.endpoints import DEFAULT_BOOTSTRAP
from odradek_pipelines.__main__ import PIPELINES, load, main
from odradek_pipelines.pipeline import (
    Pipeline,
    parse_settings,
    reason_of,
    run,
    sink_options,
    source_options,
)
from pyspark_odradek import spark_session

HERE = ("--bootstrap", "127.0.0.1:1")
OF_FLIGHTS = {
    "delay-windows",
    "aircraft-rotations",
    "parquet-archive",
    "flight-enrichment",
    "delay-backfill",
    "dead-letters",
}
SINCE = ("--since", "2013-06-01T00:00")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a pipeline starts Spark, and leave the test's signal handlers alone."""

    def start(*names: str, **config: str) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark_session, "session", start)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.delenv("ODRADEK_BOOTSTRAP", raising=False)


def test_options_go_to_the_source_or_to_the_sink_or_to_both() -> None:
    arguments = [*HERE, "--option", "failOnDataLoss=false", "--option", "kafka.sasl.username=u"]
    arguments += ["--option", "transactionalIdPrefix=p-", "--option", "delivery=at-least-once"]
    arguments += ["--option", "preparedTimeoutMs=1"]
    settings = parse_settings(load("delay-windows"), arguments)
    both = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.sasl.username": "u"}
    sink = {"transactionalidprefix": "p-", "delivery": "at-least-once", "preparedtimeoutms": "1"}
    assert sink_options(settings, topic="t") == both | sink | {"topic": "t"}
    assert sink_options(settings, topic=None) == both | sink
    source = {"subscribe": "flights", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    assert source_options(settings) == both | source


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("dead-letters", "--bootstrap", "host"),
            "'host' is not valid: it has no port; write HOST:PORT",
        ),
        (("dead-letters", *HERE, "--spark", "master"), "'master' is not NAME=VALUE"),
        (("dead-letters", *HERE, "--option", "=x"), "'=x' is not NAME=VALUE"),
        (("dead-letters", *HERE, "--batch-offsets-max", "0"), "not an integer of at least 1"),
        (("dead-letters", *HERE, "--trigger-s", "-1"), "'-1' is not a number of at least 0"),
        (
            ("aircraft-rotations", *HERE, "--gap-hours", "nan"),
            "'nan' is not a number of at least 0",
        ),
        (("delay-backfill", *HERE), "required: --since"),
        (("delay-backfill", *HERE, "--since", "june"), "not a time like 2013-06-01T00:00"),
        (("files-to-topic", *HERE), "one of the arguments --directory --ftp is required"),
        (
            ("files-to-topic", *HERE, "--directory", "d", "--ftp", "ftp://h/"),
            "--ftp: not allowed with argument --directory",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nonsense",), "there is no pipeline 'nonsense'"),
        (("delay-backfill", *HERE, *SINCE, "--until", "2013-05-31"), "--until must be later than"),
        (("files-to-topic", *HERE, "--directory", "/no/such"), "/no/such is not a directory"),
        (("files-to-topic", *HERE, "--directory", "/", "--key", "a"), "--key needs --csv"),
        (
            ("topic-to-files", *HERE, "--ftp", "sftp://me:secret@h/"),
            "'sftp://h' is not an ftp:// or ftps:// address",
        ),
        (
            ("flight-enrichment", *HERE, "--data", "/"),
            "files are missing in /: airlines.csv, airports.csv",
        ),
        (("format-adaptation", *HERE, "--config", "/no/such"), "No such file"),
    ],
)
def test_places_that_are_not_there_are_named(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("[]", "is not a JSON object"),
        ("{", "Expecting property name"),
        ('{"fields": []}', "format is None; allowed: avro, protobuf, csv, json"),
        ('{"format": "csv"}', "lists no fields"),
        ('{"format": "csv", "fields": [{"name": "a"}]}', "field a is of type None; allowed"),
        ('{"format": "csv", "fields": [{"type": "int"}]}', "None is not a valid name"),
        ('{"format": "csv", "name": "1x", "fields": []}', "'1x' is not a valid name"),
        ('{"format": "csv", "fields": [{"nmae": "a"}]}', "has unknown keys: nmae"),
        (
            '{"format": "csv", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "lists a more than once",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    told: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text(told)
    assert main(["format-adaptation", *HERE, "--config", str(tmp_path / "c.json")]) == 2
    assert sentence in capsys.readouterr().err


def test_times_are_utc_unless_they_say_otherwise() -> None:
    more = ("--until", "2013-06-01T03:00+02:00")
    settings = parse_settings(load("delay-backfill"), (*HERE, *SINCE, *more))
    assert settings.since == datetime(2013, 6, 1, tzinfo=UTC)
    assert settings.until == datetime(2013, 6, 1, 1, tzinfo=UTC)


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_BOOTSTRAP", "a:1, b:2")
    assert parse_settings(load("dead-letters"), ()).bootstrap == "a:1,b:2"


def test_without_an_address_pipelines_use_that_of_all_commands() -> None:
    assert parse_settings(load("parquet-archive"), ()).bootstrap == DEFAULT_BOOTSTRAP


def test_spools_of_checkpoints_whose_names_differ_after_a_dot_are_apart() -> None:
    steps = []
    for version in ("files.1", "files.2"):
        arguments = (*HERE, "--ftp", "ftp://h/", "--checkpoint", f"/c/{version}")
        pipeline = load("files-to-topic")
        steps.append(pipeline.plan(parse_settings(pipeline, arguments))[0])
    assert [step.rpartition(" ")[2] for step in steps] == ["/c/files.1.spool", "/c/files.2.spool"]


def test_each_pipeline_says_its_plan_and_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PIPELINES:
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0
        told = capsys.readouterr().out
        assert f"odradek pipeline {name}" in told
        assert "--bootstrap" in told
        assert ("must be flights in JSON" in " ".join(told.split())) == (name in OF_FLIGHTS)
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in PIPELINES)
    marked = {line.split()[0] for line in listed.splitlines() if line.endswith(" (*)")}
    assert marked == OF_FLIGHTS
    assert "(*) The records must be flights in JSON" in listed


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[PATH_NOT_FOUND] No path: /in.;\n'Project [value#1]\n",
            "[PATH_NOT_FOUND] No path: /in.;",
        ),
        (
            "[STREAM_FAILED] Failed: Traceback (most recent call last):\n  File x, line 1\n    f()\n"
            "ValueError: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n  File y, line 2\n    ^^^\n"
            "odradek.errors.UnknownTopic: topic 't' does not exist\n\n SQLSTATE: 38000\n=== Query ===\n",
            "odradek.errors.UnknownTopic: topic 't' does not exist",
        ),
        ("Traceback (most recent call last):\n  cut", "Traceback (most recent call last):"),
        ("", "RuntimeError('')"),
    ],
)
def test_a_failure_is_told_in_a_line(message: str, reason: str) -> None:
    assert reason_of(RuntimeError(message)) == reason


def test_a_pipeline_that_cannot_start_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        """The part of a Spark session that the runner uses."""

        stopped = 0

        def __init__(self) -> None:
            self.sparkContext = self
            self.applicationId = "app-1"

        def setLogLevel(self, level: str) -> None:
            pass

        def stop(self) -> None:
            self.stopped += 1

    def start(spark: Any, settings: Namespace) -> Sequence[Any]:
        raise ValueError("no file in /in yet")

    running = Session()
    monkeypatch.setattr(spark_session, "session", lambda *names, **config: running)
    pipeline = Pipeline(name="broken", summary="", plan=lambda settings: ["fail"], start=start)
    assert run(pipeline, parse_settings(pipeline, HERE)) == 1
    told = capsys.readouterr()
    assert told.err == "broken failed: no file in /in yet\n"
    lines = told.out.splitlines()
    assert lines[:2] == ["pipeline broken", "  1. fail"]
    assert [json.loads(line)["event"] for line in lines[2:]] == ["started", "failed"]
    assert running.stopped == 1
