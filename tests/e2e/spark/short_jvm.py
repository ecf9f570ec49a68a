"""How a JVM runs that lives for minutes: its first compiler is enough, the second would cost more than it saves."""

from __future__ import annotations

from typing import Final

SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
AS_ARGUMENTS: Final = (
    *("--spark", f"spark.driver.extraJavaOptions={SHORT_JVM}"),
    *("--spark", f"spark.executor.extraJavaOptions={SHORT_JVM}"),
)
"""For `odradek pipeline`."""
