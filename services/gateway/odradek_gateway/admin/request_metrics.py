"""What this gateway did itself: requests by status, how long they took, what is open."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RequestMetrics:
    """One a process. Labels are bounded: methods and statuses, never paths."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "odradek_gateway_requests_total",
            "Requests that were answered",
            ["method", "status"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "odradek_gateway_request_latency_seconds",
            "From the request's head to the end of its answer; long polls count with their wait",
            ["method"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.at_work = Gauge(
            "odradek_gateway_requests_at_work", "Requests being served", registry=self.registry
        )
        self.instances = Gauge(
            "odradek_gateway_consumer_instances",
            "Consumer instances that this gateway serves",
            registry=self.registry,
        )

    def answered(self, method: str, status: int, took_s: float) -> None:
        """One request is over; status 0: it broke off unanswered."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, str(status)).inc()
        self._latency.labels(known).observe(took_s)


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"})
