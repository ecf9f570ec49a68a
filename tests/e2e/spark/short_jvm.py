"""Options for a JVM that runs only for minutes: it uses only the first compiler, because the second
one costs more time than it saves.
"""

from __future__ import annotations

from typing import Final

SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
AS_ARGUMENTS: Final = (
    *("--spark", f"spark.driver.extraJavaOptions={SHORT_JVM}"),
    *("--spark", f"spark.executor.extraJavaOptions={SHORT_JVM}"),
)
"""The same options as arguments of `odradek pipeline`."""
