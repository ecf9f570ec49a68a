"""The test cases of the pipelines: the arguments of each, and how its output is compared with plain
Python.

A check asserts that nothing is missing, wrong or made up. It returns the number of rows that were
written more than once, which must be 0, whatever was killed.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.e2e.spark.adapted_flights import adapted, decoder
from tests.e2e.spark.file_sink_log import committed_files
from tests.e2e.spark.flight_facts import (
    Flight,
    delays,
    enriched,
    latest_by_key,
    rotations,
    scheduled,
)
from tests.e2e.spark.topics import Output, Topics

FILES = 12
NOT_FLIGHTS: dict[bytes | None, bytes] = {
    b"{not json": b"not the JSON of a flight",
    b'{"seq": "text"}': b"not the JSON of a flight",
    b"\xff\xfe": b"not the JSON of a flight",
    b'{"seq": 0, "carrier": "UA"}': b"without flight, origin, dest, time_hour",
    None: b"no value",
}


@dataclass(slots=True, kw_only=True)
class Scene:
    """The surroundings of one pipeline: flights in the topic `source`, an empty target topic, a
    directory, an FTP server.
    """

    topics: Topics
    flights: Sequence[Flight]
    source: str
    directory: Path
    ftp: str
    ftp_directory: Path
    target: str = field(init=False)
    dead: str = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.topics.new(partitions=2)
        self.dead = self.topics.new(partitions=1)

    @property
    def out(self) -> Path:
        """Return the directory into which files are written."""
        return self.directory / "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The test case of one pipeline."""

    pipeline: str
    arguments: Callable[[Scene], Sequence[str]]
    check: Callable[[Scene], int]
    is_batch: bool = False
    rows: Callable[[Scene], int] = lambda scene: len(scene.flights)
    """Returns how many rows the pipeline reads."""
    limit: Callable[[Scene], Sequence[str]] = lambda scene: (
        "--batch-offsets-max",
        str(max(1, len(scene.flights) // 6)),
    )
    """Returns the option that divides all rows into about six batches."""


def _to_topic(scene: Scene) -> tuple[str, ...]:
    return ("--from", scene.source, "--to", scene.target)


def _instant(text: str) -> str:
    at = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- (a) and (e): windows ---------------------------------------------------------------------------


def _check_windows(scene: Scene, flights: Iterable[Flight]) -> int:
    written = scene.topics.pairs(scene.target)
    table = latest_by_key(written)
    found = {
        (row["carrier"], row["hour"]): (row["flights"], row["delay_sum_min"])
        for row in table.values()
    }
    assert found == delays(flights)
    for key, row in table.items():
        assert key == f"{row['carrier']}|{row['hour']}"
        assert row["delay_mean_min"] == row["delay_sum_min"] / row["flights"]
    return _again(written)


def _again(written: Sequence[tuple[bytes | None, bytes | None]]) -> int:
    """Return how many records repeat another one; each change of a window or a rotation makes a new
    value, so none should.
    """
    return len(written) - len(set(written))


def _autumn(scene: Scene) -> list[Flight]:
    return [flight for flight in scene.flights if scheduled(flight).month in (9, 10, 11)]


# --- (b): rotations ---------------------------------------------------------------------------------


def _check_rotations(scene: Scene) -> int:
    written = scene.topics.pairs(scene.target)
    found = {
        key: (_instant(row["last_departure"]), row["legs"], row["distance_miles"], row["origins"])
        for key, row in latest_by_key(written).items()
    }
    assert found == rotations(scene.flights)
    return _again(written)


# --- (c): Parquet by date ---------------------------------------------------------------------------


def _check_parquet(scene: Scene) -> int:
    import pyarrow.parquet as pq

    found = []
    for path in committed_files(scene.out):
        table = pq.ParquetFile(path).read(columns=["seq", "carrier", "arr_delay"])
        day = path.parent.name.removeprefix("date=")
        for row in table.to_pylist():
            found.append((row["seq"], day, row["carrier"], row["arr_delay"]))
    assert sorted(found, key=lambda row: row[0]) == [
        (f["seq"], scheduled(f).date().isoformat(), f["carrier"], f["arr_delay"])
        for f in scene.flights
    ]
    return 0


# --- (d): enrichment --------------------------------------------------------------------------------


def _check_enriched(scene: Scene) -> int:
    wanted = enriched(scene.flights)
    again = 0
    seen: set[int] = set()
    for key, value in scene.topics.pairs(scene.target):
        row = json.loads(value or b"{}")
        assert key == (None if row["tailnum"] is None else row["tailnum"].encode())
        assert (
            *(row["airline"], row["origin_name"], row["dest_name"]),
            *(row["model"], row["seats"], row["temperature_f"], row["wind_mph"]),
        ) == wanted[row["seq"]]
        again += row["seq"] in seen
        seen.add(row["seq"])
    assert seen == wanted.keys()
    return again


# --- (f): dead letters ------------------------------------------------------------------------------


OWN_HEADERS: Final = (("trace", b"1"), ("empty", None))


def _dirty(scene: Scene) -> tuple[str, ...]:
    """Return arguments for a topic of flights in which some records are not flights."""
    source = scene.topics.new(partitions=2)
    good = [
        Output(json.dumps(flight).encode(), key=b"g", headers=OWN_HEADERS)
        for flight in scene.flights
    ]
    bad = [Output(value, key=b"b", headers=OWN_HEADERS) for value in NOT_FLIGHTS]
    middle = len(good) // 2
    scene.topics.send(source, [*good[:middle], *bad, *good[middle:]])
    return ("--from", source, "--to", scene.target, "--dead", scene.dead)


def _check_dead_letters(scene: Scene) -> int:
    good = Counter(scene.topics.pairs(scene.target))
    assert good.keys() == {(b"g", json.dumps(flight).encode()) for flight in scene.flights}
    letters = scene.topics.read(scene.dead)
    reasons = {record.value: dict(record.headers)["dead-letter.reason"] for record in letters}
    assert reasons == NOT_FLIGHTS
    assert {tuple(record.headers[:2]) for record in letters} == {OWN_HEADERS}
    assert {tuple(record.headers) for record in scene.topics.read(scene.target)} == {OWN_HEADERS}
    headers = [dict(record.headers) for record in letters]
    (source,) = {header["dead-letter.topic"] for header in headers}
    assert source is not None
    places = {(r.partition, r.offset): r.value for r in scene.topics.read(source.decode())}
    for record, header in zip(letters, headers, strict=True):
        at = (header["dead-letter.partition"], header["dead-letter.offset"])
        assert places[int(at[0] or b""), int(at[1] or b"")] == record.value
    return good.total() - len(good) + len(letters) - len(NOT_FLIGHTS)


# --- (g): formats -----------------------------------------------------------------------------------


def _check_adapted(format_name: str) -> Callable[[Scene], int]:
    def check(scene: Scene) -> int:
        decode = decoder(format_name)
        found: Counter[tuple[object, ...]] = Counter()
        for key, value in scene.topics.pairs(scene.target):
            found[key, *sorted(decode(value or b"").items())] += 1
        assert found.keys() == {adapted(flight) for flight in scene.flights}
        return found.total() - len(found)

    return check


# --- (h): files -------------------------------------------------------------------------------------


def _cells(flight: Flight) -> dict[str, str | None]:
    return {name: None if cell is None else str(cell) for name, cell in flight.items()}


def _write_files(directory: Path, flights: Sequence[Flight]) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(FILES):
        rows = [_cells(flight) for flight in flights[number::FILES]]
        with (directory / f"{number:02}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows({k: v or "" for k, v in row.items()} for row in rows)
    (directory / ".99.csv.part").write_text("half a file")


def _from_directory(scene: Scene) -> tuple[str, ...]:
    _write_files(scene.directory / "in", scene.flights)
    where = ("--directory", str(scene.directory / "in"))
    return (*where, "--csv", "--key", "tailnum", "--to", scene.target)


def _from_ftp(scene: Scene) -> tuple[str, ...]:
    _write_files(scene.ftp_directory, scene.flights)
    return ("--ftp", scene.ftp, "--csv", "--key", "tailnum", "--to", scene.target)


def _check_lines(scene: Scene) -> int:
    found = Counter(
        (key, *json.loads(value or b"{}").items())
        for key, value in scene.topics.pairs(scene.target)
    )
    wanted = set()
    for flight in scene.flights:
        cells = _cells(flight)
        key = None if cells["tailnum"] is None else cells["tailnum"].encode()
        wanted.add((key, *cells.items()))
    assert found.keys() == wanted
    return found.total() - len(found)


def _check_texts(paths: Callable[[Scene], Iterable[Path]]) -> Callable[[Scene], int]:
    def check(scene: Scene) -> int:
        lines = [line for path in paths(scene) for line in path.read_text().splitlines()]
        rows = sorted((json.loads(line) for line in lines), key=lambda row: row["seq"])
        assert rows == list(scene.flights)
        return 0

    return check


CASES = {
    "delay-windows": Case(
        pipeline="delay-windows",
        arguments=_to_topic,
        check=lambda scene: _check_windows(scene, scene.flights),
    ),
    "aircraft-rotations": Case(
        pipeline="aircraft-rotations", arguments=_to_topic, check=_check_rotations
    ),
    "parquet-archive": Case(
        pipeline="parquet-archive",
        arguments=lambda scene: ("--from", scene.source, "--to", str(scene.out)),
        check=_check_parquet,
    ),
    "flight-enrichment": Case(
        pipeline="flight-enrichment", arguments=_to_topic, check=_check_enriched
    ),
    "delay-backfill": Case(
        pipeline="delay-backfill",
        arguments=lambda scene: (
            *_to_topic(scene),
            *("--since", "2013-09-01T00:00", "--until", "2013-12-01T00:00"),
        ),
        check=lambda scene: _check_windows(scene, _autumn(scene)),
        is_batch=True,
    ),
    "dead-letters": Case(
        pipeline="dead-letters",
        arguments=_dirty,
        check=_check_dead_letters,
        rows=lambda scene: len(scene.flights) + len(NOT_FLIGHTS),
    ),
    **{
        f"format-adaptation-{name}": Case(
            pipeline="format-adaptation",
            arguments=lambda scene, name=name: (*_to_topic(scene), "--format", name),
            check=_check_adapted(name),
        )
        for name in ("avro", "protobuf", "csv", "json")
    },
    "directory-to-topic": Case(
        pipeline="files-to-topic",
        arguments=_from_directory,
        check=_check_lines,
        limit=lambda scene: ("--batch-files-max", "2"),
    ),
    "ftp-to-topic": Case(
        pipeline="files-to-topic",
        arguments=_from_ftp,
        check=_check_lines,
        limit=lambda scene: ("--batch-files-max", "2"),
    ),
    "topic-to-directory": Case(
        pipeline="topic-to-files",
        arguments=lambda scene: ("--from", scene.source, "--to", str(scene.out)),
        check=_check_texts(lambda scene: committed_files(scene.out)),
    ),
    "topic-to-ftp": Case(
        pipeline="topic-to-files",
        arguments=lambda scene: ("--from", scene.source, "--ftp", scene.ftp),
        check=_check_texts(lambda scene: scene.ftp_directory.glob("batch-*.txt")),
    ),
}
