"""What the Kafka listeners count, and how a scrape tells of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from odradek_protocol.kafka.api_keys import ApiKey
from odradek_runtime.latencies import Latencies

_PREFIX: Final = "odradek_broker_kafka_"


class KafkaCounters:
    """Rises on the event loop alone. Times are in seconds, from the whole request to its answer."""

    __slots__ = ("closed", "connections", "failures", "latencies", "requests", "throttled_ms")

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # by api key
        self.latencies: defaultdict[int, Latencies] = defaultdict(Latencies)  # by api key
        self.closed = 0  # connections that the broker ended for a reason
        self.failures = 0  # requests that ended in an exception: bugs
        self.throttled_ms = 0
        self.connections: Counter[str] = Counter()  # open ones, by address

    def families(self) -> Iterator[Any]:
        """For prometheus_client."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        requests = CounterMetricFamily(
            f"{_PREFIX}requests", "Requests begun, by kind", labels=["request"]
        )
        for key, count in self.requests.items():
            requests.add_metric([ApiKey(key).name.lower()], count)
        yield requests
        latencies = HistogramMetricFamily(
            f"{_PREFIX}request_latency_seconds",
            "From the whole request to its answer; long polls wait as they were asked to",
            labels=["request"],
        )
        for key, seen in self.latencies.items():
            latencies.add_metric([ApiKey(key).name.lower()], seen.cumulative(), seen.sum_seconds)
        yield latencies
        for name, doc, value in (
            ("connections_refused", "Connections ended by the broker for a reason", self.closed),
            ("request_failures", "Requests that ended in an exception", self.failures),
            ("throttled_seconds", "Waits imposed by quotas", self.throttled_ms / 1000),
        ):
            yield CounterMetricFamily(_PREFIX + name, doc, value=value)
        yield GaugeMetricFamily(
            f"{_PREFIX}connections", "Open connections", value=self.connections.total()
        )
