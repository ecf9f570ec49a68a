"""Counts logins by mechanism and result, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric


class Logins:
    """The numbers of SASL logins over Kafka and gRPC. If a client logs in again on its connection, the login counts
    again.

    The mechanism is "" if the client chose no mechanism, or one that the listener does not offer.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # by mechanism and result

    def succeeded(self, mechanism: str) -> None:
        self.counts[mechanism, "success"] += 1

    def failed(self, mechanism: str) -> None:
        self.counts[mechanism, "failure"] += 1

    def families(self) -> Iterator[Metric]:
        """Yield the metric for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily

        logins = CounterMetricFamily(
            "odradek_broker_logins",
            "Logins by SASL, by mechanism and result; the mechanism is empty if the client chose none that is offered",
            labels=["mechanism", "result"],
        )
        for (mechanism, result), count in self.counts.items():
            logins.add_metric([mechanism, result], count)
        yield logins
