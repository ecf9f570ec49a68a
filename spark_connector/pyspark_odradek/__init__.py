"""Odradek as a Spark data source: `spark.read.format("odradek")`, without registration.

When Spark first looks up a data source by name, it imports every top-level module whose name starts with `pyspark_`,
and uses the class `DefaultSource` in it. To keep that import fast, this module imports each of its names at first use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource", "LagListener", "session", "write_step"]


def __getattr__(name: str) -> Any:  # Any, because the attribute may be any object of the package
    if name == "DefaultSource":
        from pyspark_odradek.data_source import OdradekDataSource

        return OdradekDataSource
    if name == "session":
        from pyspark_odradek.spark_session import session

        return session
    if name == "LagListener":
        from pyspark_odradek.lag_listener import LagListener

        return LagListener
    if name == "write_step":
        from pyspark_odradek.step_write import write_step

        return write_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
