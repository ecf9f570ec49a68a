"""How far a query is behind: Spark's Python sources cannot report metrics, so a listener works them out."""

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
        self._on_lag = on_lag or _logged

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Work out the lag of each source."""
        progress = event.progress
        for source in progress.sources:
            metrics = lag(source.endOffset, source.latestOffset)
            if metrics:
                self._on_lag(progress.name or str(progress.id), metrics)

    def onQueryIdle(self, event: Any) -> None:
        """The last lag still holds."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing more to tell."""


def lag(end_offset: str | None, latest_offset: str | None) -> dict[str, float]:
    """Offsets behind the latest, per partition summed up; empty when this is no Odradek source."""
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


def _logged(query: str, metrics: dict[str, float]) -> None:
    _log.info("query %s is behind: %s", query, metrics)
