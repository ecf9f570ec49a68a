"""Health and metrics of a gateway: `/livez`, `/readyz`, `/_health` and `/metrics`.

`/metrics` shows the requests that this gateway served, and the state of the cluster. The cluster's metrics have the
names of kafka_exporter, so existing dashboards and alerts work unchanged. The gateway reads the state from the brokers
at each scrape; concurrent scrapes share one result. The reads of offsets and of groups have a time limit. If such a
read fails, the metric families that need its result have no samples, and odradek_gateway_scrape_failed is 1.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel

from odradek import errors
from odradek.admin.descriptions import GroupListing, TopicDescription
from odradek.cluster.metadata_cache import Broker
from odradek.cluster.turns import in_turns, run_in_turns
from odradek.errors import OdradekError
from odradek.partitions import EARLIEST, LATEST, TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.errors import ErrorBody
from odradek_gateway.rest.requests import Cluster
from odradek_gateway.rest.v3.resources import ask_for_each
from odradek_runtime.logs import event_log

_PART_S: Final = 10.0
_SAMPLES_PER_PIECE: Final = 500
_PARTITION: Final = ("topic", "partition")
_GROUP_PARTITION: Final = ("consumergroup", "topic", "partition")
_log = event_log(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """A group's number of members and its committed offsets."""

    members: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of the cluster that one scrape has read. A field is None if it could not be read, or not in time."""

    brokers: list[Broker]
    topics: list[TopicDescription]
    starts: Mapping[TopicPartition, int] | None
    ends: Mapping[TopicPartition, int] | None
    groups: Mapping[str, GroupProgress] | None


class ClusterMetrics:
    """Metrics of the cluster with the names of kafka_exporter, read from the brokers at each scrape."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._reading: asyncio.Task[Snapshot] | None = None

    async def families(self) -> list[GaugeMetricFamily]:
        """Return the cluster's current metric families. Raises an OdradekError if no broker responds.

        If another call is reading the state already, this call waits for the result of that call.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="metrics of the cluster")
        return await run_in_turns(families_of(await asyncio.shield(self._reading)))

    async def _read(self) -> Snapshot:
        admin = self._cluster.admin
        brokers, topics = await asyncio.gather(
            admin.list_brokers(), admin.list_topics(include_internal=True)
        )
        pairs = ((topic.name, p) for topic in topics for p in topic.partitions if p.leader_id >= 0)
        led = [TopicPartition(name, p.partition) async for name, p in in_turns(pairs)]
        starts, ends, groups = await asyncio.gather(
            _bounded("offsets", self._offsets(led, EARLIEST)),
            _bounded("offsets", self._offsets(led, LATEST)),
            _bounded("groups", self._groups()),
        )
        return Snapshot(brokers=brokers, topics=topics, starts=starts, ends=ends, groups=groups)

    async def _offsets(
        self, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        offsets = await self._cluster.admin.list_offsets(dict.fromkeys(partitions, which))
        return {name: at.offset async for name, at in in_turns(offsets.items())}

    async def _groups(self) -> dict[str, GroupProgress]:
        admin = self._cluster.admin
        progress: dict[str, GroupProgress] = {}

        async def read(listing: GroupListing) -> None:
            try:
                described = await admin.describe_group(listing.group)
                offsets = await admin.group_offsets(listing.group)
            except OdradekError as error:
                if error.retriable:
                    raise
                return  # the group or one of its topics was deleted, or the gateway may not describe the group
            progress[listing.group] = GroupProgress(members=len(described.members), offsets=offsets)

        await ask_for_each(await admin.list_groups(), read)
        return progress


async def _bounded(part: str, reading: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(_PART_S):
            return await reading
    except (OdradekError, TimeoutError) as error:
        _log.warning(
            "Response to a scrape lacks metrics because a read from the brokers failed",
            part=part,
            reason=repr(error),
        )
        return None


def families_of(snapshot: Snapshot) -> Generator[None, None, list[GaugeMetricFamily]]:
    """Return the snapshot as metric families. The generator yields after each partition, so that its caller can let
    other tasks run.
    """
    brokers = GaugeMetricFamily("kafka_brokers", "Number of brokers in the cluster")
    brokers.add_metric([], len(snapshot.brokers))
    info = GaugeMetricFamily("kafka_broker_info", "Brokers", labels=["id", "address"])
    for broker in snapshot.brokers:
        info.add_metric([str(broker.broker_id), broker.kafka_endpoint or broker.grpc_endpoint], 1)
    failed = GaugeMetricFamily(
        "odradek_gateway_scrape_failed",
        "1 if this part could not be read, or not in time",
        labels=["part"],
    )
    failed.add_metric(["offsets"], int(snapshot.starts is None or snapshot.ends is None))
    failed.add_metric(["groups"], int(snapshot.groups is None))
    families = [brokers, info, failed, *(yield from _topic_families(snapshot.topics))]
    for name, text, offsets in (
        ("kafka_topic_partition_current_offset", "Offset after the last record", snapshot.ends),
        ("kafka_topic_partition_oldest_offset", "First offset", snapshot.starts),
    ):
        family = GaugeMetricFamily(name, text, labels=_PARTITION)
        for at, offset in (offsets or {}).items():
            family.add_metric([at.topic, str(at.partition)], offset)
            yield
        families.append(family)
    return [*families, *(yield from _group_families(snapshot))]


def _topic_families(
    topics: list[TopicDescription],
) -> Generator[None, None, list[GaugeMetricFamily]]:
    partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions", labels=["topic"])
    names = {
        "leader": "Id of the leader",
        "leader_is_preferred": "1 if the leader is the preferred one",
        "replicas": "Number of replicas",
        "in_sync_replica": "Number of in-sync replicas",
        "under_replicated_partition": "1 if replicas are out of sync",
    }
    families = {
        name: GaugeMetricFamily(f"kafka_topic_partition_{name}", text, labels=_PARTITION)
        for name, text in names.items()
    }
    for topic in topics:
        partitions.add_metric([topic.name], len(topic.partitions))
        for p in topic.partitions:
            values = {
                "leader": p.leader_id,
                "leader_is_preferred": int(bool(p.replicas) and p.leader_id == p.replicas[0]),
                "replicas": len(p.replicas),
                "in_sync_replica": len(p.isr),
                "under_replicated_partition": int(len(p.isr) < len(p.replicas)),
            }
            for name, value in values.items():
                families[name].add_metric([topic.name, str(p.partition)], value)
            yield
    return [partitions, *families.values()]


def _group_families(snapshot: Snapshot) -> Generator[None, None, list[GaugeMetricFamily]]:
    prefix = "kafka_consumergroup"
    members = GaugeMetricFamily(f"{prefix}_members", "Members", labels=["consumergroup"])
    current = GaugeMetricFamily(
        f"{prefix}_current_offset", "Committed offset", labels=_GROUP_PARTITION
    )
    lag = GaugeMetricFamily(
        f"{prefix}_lag", "Records after the committed offset", labels=_GROUP_PARTITION
    )
    sums = {
        name: GaugeMetricFamily(f"{prefix}_{name}_sum", text, labels=_GROUP_PARTITION[:2])
        for name, text in (
            ("current_offset", "Committed offsets of a topic, together"),
            ("lag", "Lag of a topic's partitions, together"),
        )
    }
    ends = snapshot.ends or {}
    for group, progress in (snapshot.groups or {}).items():
        members.add_metric([group], progress.members)
        current_of: defaultdict[str, int] = defaultdict(int)
        lag_of: defaultdict[str, int] = defaultdict(int)
        for at, offset in progress.offsets.items():
            current.add_metric([group, at.topic, str(at.partition)], offset)
            current_of[at.topic] += offset
            # `ends` lacks partitions of deleted topics and partitions without a leader, and is empty if the read
            # failed.
            if at in ends:
                behind = max(0, ends[at] - offset)
                lag.add_metric([group, at.topic, str(at.partition)], behind)
                lag_of[at.topic] += behind
            yield
        for name, by_topic in (("current_offset", current_of), ("lag", lag_of)):
            for topic, value in by_topic.items():
                sums[name].add_metric([group, topic], value)
    return [members, current, lag, *sums.values()]


_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RequestMetrics:
    """Metrics of the requests that this gateway served.

    The labels are the method and the status, never the path, so the number of label values is bounded.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "odradek_gateway_requests_total",
            "Requests that got a response",
            ["method", "status"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "odradek_gateway_request_latency_seconds",
            "Time from the request's head to the end of its response, including the wait of a long poll",
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

    def responded(self, method: str, status: int, took_s: float) -> None:
        """Count a finished request. Status 0 means that the request ended without a response."""
        label = method if method in _METHODS else "other"
        self._requests.labels(label, str(status)).inc()
        self._latency.labels(label).observe(took_s)


_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"})


router = APIRouter(tags=["health"])
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(BaseModel):
    """The health of the gateway: `status` is `ok` or a short description of the problem, `reason` gives details."""

    status: str
    reason: str | None = None


@router.get("/livez", response_model=Health, response_model_exclude_none=True)
async def livez() -> Health:
    """Succeed while the process's event loop runs."""
    return Health(status="ok")


@router.get("/_health", response_model=Health, response_model_exclude_none=True)
async def health() -> Health:
    """Succeed while the event loop runs, like /livez. Karapace's REST proxy has its health check at this path."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health, responses={503: {"model": Health}})
async def readyz(cluster: Cluster) -> Response:
    """Succeed while the gateway reaches the cluster and is not stopping."""
    if cluster.waits.is_stopping:
        return JSONResponse({"status": "stopping"}, 503)
    try:
        await cluster.connect(2.0)
    except errors.OdradekError as error:
        return JSONResponse({"status": "no broker responds", "reason": str(error)}, 503)
    return JSONResponse({"status": "ok"})


# The responses of the route /metrics put the error body's schema into openapi.json, because every gateway has this
# route. `errors_of` refers to that schema.
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorBody} for status in (429, 500, 503)
}


@router.get("/metrics", response_class=PlainTextResponse, responses=_ERRORS)
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics of brokers, topics, partitions and groups (with kafka_exporter's names), and of this
    gateway.
    """
    state = request.app.state
    families = [*await state.cluster_metrics.families(), *state.certificate_expiry.families()]
    state.request_metrics.instances.set(len(state.instances))
    return StreamingResponse(_exposition(families, state.request_metrics), media_type=_TEXT)


async def _exposition(families: Iterable[Metric], own: RequestMetrics) -> AsyncIterator[bytes]:
    """Yield the families as text in pieces. The event loop runs other requests after each piece."""
    for family in families:
        for piece in exposition_pieces(family):
            yield piece
            await asyncio.sleep(0)
    yield generate_latest(own.registry)


def exposition_pieces(family: Metric) -> Iterator[bytes]:
    """Yield one family as text in pieces; only the first piece has the lines HELP and TYPE.

    The function removes the samples from the family piece by piece, because freeing all samples of a large cluster at
    once would block the event loop for tens of milliseconds.
    """
    samples: list[Any] = family.samples
    family.samples = []
    for start in range(0, max(1, len(samples)), _SAMPLES_PER_PIECE):
        part = Metric(family.name, family.documentation, family.type)
        end = min(start + _SAMPLES_PER_PIECE, len(samples))
        part.samples = samples[start:end]
        samples[start:end] = [None] * (end - start)
        text = generate_latest(_Collected(part))
        yield text.split(b"\n", 2)[2] if start else text


class _Collected(CollectorRegistry):
    """A registry that returns one given metric family, in the form that `generate_latest` needs."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
