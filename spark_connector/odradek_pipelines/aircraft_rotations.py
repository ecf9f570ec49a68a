"""The pipeline `aircraft-rotations`, an example of a stateful query with a TTL. It finds the rotations of aircraft: all
departures of one tail number without a long pause in between.

A departure within GAP_HOURS after the previous departure continues the rotation; a later departure begins a new one.
The pipeline writes a rotation whenever it changes, with the key TAIL|FIRST DEPARTURE, so the last record of each key
has the whole rotation. The state of an aircraft expires if it has no flights for the TTL, which counts in processing
time.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from odradek_pipelines.flights import as_json, read_flights
from odradek_pipelines.pipeline import (
    Pipeline,
    duration,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "aircraft-rotations"
GAP_HOURS: Final = 12
TTL_HOURS: Final = 24
_EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_STATE: Final = "first_s bigint, last_s bigint, legs int, distance bigint, origins string"
_OUTPUT: Final = (
    "tailnum string, first_departure timestamp, last_departure timestamp, legs int,"
    " distance_miles bigint, origins string"
)


def rotation_processor(gap_hours: float, ttl_hours: float) -> Any:
    """Return Spark's stateful processor for the query. Its state is the current rotation of each tail number."""
    from datetime import datetime

    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import (
        StatefulProcessor,
        StatefulProcessorHandle,
    )

    gap_s, ttl_ms = gap_hours * 3600, round(ttl_hours * 3_600_000)

    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    class Rotations(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._current = handle.getValueState("rotation", _STATE, ttl_ms)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            # Spark passes the rows of a key in any order, so sort them by the time of departure.
            departures = sorted(rows, key=lambda row: (row.scheduled_s, row.seq))
            current = self._current.get() if self._current.exists() else None
            changed: dict[int, tuple[int, int, int, int, str]] = {}
            for row in departures:
                if current is not None and row.scheduled_s - current[1] <= gap_s:
                    first, _, legs, distance, origins = current
                    current = (
                        first,
                        row.scheduled_s,
                        legs + 1,
                        distance + (row.distance or 0),
                        f"{origins},{row.origin}",
                    )
                else:
                    current = (row.scheduled_s, row.scheduled_s, 1, row.distance or 0, row.origin)
                changed[current[0]] = current
            assert current is not None, "Spark calls handleInputRows with at least one row"
            self._current.update(current)
            for first, last, legs, distance, origins in changed.values():
                yield Row(
                    tailnum=key[0],
                    first_departure=at(first),
                    last_departure=at(last),
                    legs=legs,
                    distance_miles=distance,
                    origins=origins,
                )

        def close(self) -> None:
            """Do nothing, because the state store belongs to Spark."""

    return Rotations()


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--gap-hours",
        type=duration,
        default=GAP_HOURS,
        help=f"longest pause between two departures of the same rotation, in hours; default: {GAP_HOURS}",
    )
    parser.add_argument(
        "--ttl-hours",
        type=duration,
        default=TTL_HOURS,
        help="how long the state of an aircraft without flights is kept, in hours;"
        f" default: {TTL_HOURS}",
    )


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        "parse flights (JSON); keep those that have departed and have a tail number",
        f"group by tail number: departures at most {settings.gap_hours:g} h apart are one rotation;"
        f" state expires after {settings.ttl_hours:g} h",
        f"write changed rotations to topic {target_of(settings, TARGET)!r}, key TAIL|FIRST DEPARTURE",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    from pyspark.sql import functions as f

    flights = read_flights(spark, settings)
    departed = flights.where("tailnum is not null and dep_time is not null")
    legs = departed.select(
        "tailnum", "seq", "origin", "distance", f.unix_timestamp("scheduled").alias("scheduled_s")
    )
    rotations = legs.groupBy("tailnum").transformWithState(
        statefulProcessor=rotation_processor(settings.gap_hours, settings.ttl_hours),
        outputStructType=_OUTPUT,
        outputMode="Update",
        timeMode="ProcessingTime",
    )
    first = f.date_format("first_departure", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    rows = as_json(rotations, key=f.concat_ws("|", "tailnum", first))
    target = target_of(settings, TARGET)
    # With processing-time timeouts, Spark runs empty batches for ever because state may expire, so --available-now
    # would never end. A query reads this setting when it starts.
    spark.conf.set(_EMPTY_BATCHES, str(not settings.available_now).lower())
    try:
        return [write_topic(rows, settings, PIPELINE.name, topic=target, mode="update")]
    finally:
        spark.conf.unset(_EMPTY_BATCHES)


PIPELINE: Final = Pipeline(
    name="aircraft-rotations",
    summary="rotations by tail number: transformWithState with a TTL",
    plan=_plan,
    start=_start,
    reads_flights=True,
    add_arguments=_arguments,
    spark_config=(
        (
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        ),
        ("spark.sql.shuffle.partitions", "4"),
    ),
)
