"""Counts the gRPC calls of clients, for the metrics."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

import grpc

from odradek_broker.rpc.callers import ServerContext
from odradek_runtime.latencies import Latencies

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX: Final = "odradek_broker_grpc_"
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode if code.value[0]}


class GrpcCalls:
    """The numbers of calls, by method and status code. A call is counted when it ends. Calls of unknown methods are not
    counted.

    Produce and Fetch are streams of many requests: a stream is one call, which is open for as long as its client runs.
    """

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()  # by method and status code
        self.latencies: defaultdict[str, Latencies] = defaultdict(Latencies)  # unary calls only
        self.streams: Counter[str] = Counter()  # open streams, by method

    @contextmanager
    def counted(self, path: str, context: ServerContext, *, is_stream: bool) -> Iterator[None]:
        """Count the call that the block serves. `path` is that of its method: `/odradek.v1.BrokerService/Fetch`."""
        method, code, began_s = path.rpartition("/")[2], "UNKNOWN", perf_counter()
        self.streams[method] += is_stream
        try:
            yield
            code = "OK"
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except BaseException:
            code = _code_of(context)
            raise
        finally:
            self.ended[method, code] += 1
            if is_stream:
                self.streams[method] -= 1
            else:
                self.latencies[method].observe(perf_counter() - began_s)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics for prometheus_client."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        calls = CounterMetricFamily(
            f"{_PREFIX}calls", "gRPC calls of clients that ended", labels=["method", "code"]
        )
        for (method, code), count in self.ended.items():
            calls.add_metric([method, code], count)
        yield calls
        latencies = HistogramMetricFamily(
            f"{_PREFIX}call_latency_seconds",
            "Time of unary gRPC calls of clients",
            labels=["method"],
        )
        for method, seen in self.latencies.items():
            latencies.add_metric([method], seen.cumulative(), seen.sum_seconds)
        yield latencies
        streams = GaugeMetricFamily(
            f"{_PREFIX}open_streams", "Open gRPC streams of clients", labels=["method"]
        )
        for method, count in self.streams.items():
            streams.add_metric([method], count)
        yield streams


def _code_of(context: ServerContext) -> str:
    """Return the name of the status that a handler has set before it raised; UNKNOWN if the handler set no status."""
    # `context.code()` is the argument of `abort` or `set_code`, or the number 0 if neither was called.
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _NAMES.get(code, "UNKNOWN") if isinstance(code, int) else "UNKNOWN"
