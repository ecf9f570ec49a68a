"""The lag of a query. Spark's Python sources cannot report metrics, so a listener computes them from progress."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_odradek.offsets import from_json

_log = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Calls `on_lag(query name or id, metrics)` at each progress that reads from Odradek.

    Metrics are those of Spark's Kafka source, minOffsetsBehindLatest, maxOffsetsBehindLatest and
    avgOffsetsBehindLatest, and totalOffsetsBehindLatest. Without `on_lag` they are logged.
    Add it by `spark.streams.addListener`.
    """

    def __init__(self, on_lag: Callable[[str, dict[str, float]], None] | None = None) -> None:
        self._on_lag = on_lag or _log_lag

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the lag of each source."""
        progress = event.progress
        for source in progress.sources:
            metrics = lag(source.endOffset, source.latestOffset)
            if metrics:
                self._on_lag(progress.name or str(progress.id), metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: the last reported lag still holds."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: the lag was reported with the last progress."""


def lag(end_offset: str | None, latest_offset: str | None) -> dict[str, float]:
    """Return the metrics of offsets behind the latest over all partitions; empty for another kind of source."""
    try:
        end = from_json(json.loads(end_offset or "null"))
        latest = from_json(json.loads(latest_offset or "null"))
    except (ValueError, TypeError, AttributeError):
        return {}
    behind = [offset - end.get(name, 0) for name, offset in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "totalOffsetsBehindLatest": sum(behind),
    }


def _log_lag(query: str, metrics: dict[str, float]) -> None:
    _log.info("Streaming query %s is behind its topics: %s", query, metrics)
