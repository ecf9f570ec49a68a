"""The lag of a streaming query. Python data sources cannot report metrics to Spark, so a listener computes the lag from
the query's progress events.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_odradek.offsets import from_json

_log = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Calls `on_lag(query name or id, metrics)` for each progress event of a query that reads from Odradek.

    The metrics are minOffsetsBehindLatest, maxOffsetsBehindLatest and avgOffsetsBehindLatest, as in Spark's Kafka
    source, and totalOffsetsBehindLatest. Without `on_lag` the metrics are logged. Register the listener by
    `spark.streams.addListener`.
    """

    def __init__(self, on_lag: Callable[[str, dict[str, float]], None] | None = None) -> None:
        self._on_lag = on_lag or _log_lag

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing, because there is no progress yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the lag of each source."""
        progress = event.progress
        for source in progress.sources:
            metrics = lag(source.endOffset, source.latestOffset)
            if metrics:
                self._on_lag(progress.name or str(progress.id), metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing, because the lag has not changed since the last progress event."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing, because the last progress event has reported the lag."""


def lag(end_offset: str | None, latest_offset: str | None) -> dict[str, float]:
    """Return how far `end_offset` is behind `latest_offset`, over all partitions of a source, as metrics.

    Both are the JSON texts of a progress event. The result is empty if they are not offsets of topics.
    """
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
