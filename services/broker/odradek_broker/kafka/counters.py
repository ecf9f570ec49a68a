"""The counters of the Kafka listeners, and their metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_runtime.latencies import Latencies

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX: Final = "odradek_broker_kafka_"


class KafkaCounters:
    """Counters of all listeners. Only the event loop changes them.

    Latencies are in seconds, from the arrival of the complete request to its response.
    """

    __slots__ = ("closed", "connections", "failures", "latencies", "requests", "throttled_ms")

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # number of requests, by API key
        self.latencies: defaultdict[int, Latencies] = defaultdict(Latencies)  # by API key
        self.closed = 0  # connections that the broker closed because of an error or a limit
        self.failures = 0  # requests that ended in an exception, which is an internal error
        self.throttled_ms = 0
        self.connections: Counter[str] = Counter()  # number of open connections, by address

    def families(self) -> Iterator[Metric]:
        """Yield the metrics for prometheus_client."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        requests = CounterMetricFamily(
            f"{_PREFIX}requests", "Requests whose handling began, by API", labels=["request"]
        )
        for key, count in self.requests.items():
            requests.add_metric([ApiKey(key).name.lower()], count)
        yield requests
        latencies = HistogramMetricFamily(
            f"{_PREFIX}request_latency_seconds",
            "Time from the arrival of the whole request to its response, including the wait of long polls",
            labels=["request"],
        )
        for key, seen in self.latencies.items():
            latencies.add_metric([ApiKey(key).name.lower()], seen.cumulative(), seen.sum_seconds)
        yield latencies
        for name, doc, value in (
            ("connections_refused", "Connections closed for an error or a limit", self.closed),
            ("request_failures", "Requests that failed on an internal error", self.failures),
            ("throttled_seconds", "Delays of requests because of quotas", self.throttled_ms / 1000),
        ):
            yield CounterMetricFamily(_PREFIX + name, doc, value=value)
        yield GaugeMetricFamily(
            f"{_PREFIX}connections", "Open connections", value=self.connections.total()
        )
