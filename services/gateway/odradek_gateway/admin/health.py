"""Liveness, readiness, and metrics under kafka_exporter's names, which existing dashboards read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from pydantic import BaseModel

from odradek import errors
from odradek.admin.descriptions import TopicDescription
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.errors import errors_of
from odradek_gateway.rest.request_bodies import cluster_of

router = APIRouter(tags=["health"])
Cluster = Annotated[ClusterAccess, Depends(cluster_of)]


class Health(BaseModel):
    """`ok`, or what is wrong."""

    status: str
    reason: str | None = None


@router.get("/livez", response_model=Health, response_model_exclude_none=True)
async def livez() -> Health:
    """The process turns."""
    return Health(status="ok")


@router.get("/_health", response_model=Health, response_model_exclude_none=True)
async def health() -> Health:
    """Karapace's name for the same."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health, responses={503: {"model": Health}})
async def readyz(cluster: Cluster) -> Response:
    """It can see the cluster, and is not about to stop."""
    if cluster.is_stopping:
        return JSONResponse({"status": "stopping"}, 503)
    try:
        await cluster.client.connect(2.0)
    except errors.OdradekError as error:
        return JSONResponse({"status": "no broker answers", "reason": str(error)}, 503)
    return JSONResponse({"status": "ok"})


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=errors_of(429, 500, 503),
)
async def metrics(cluster: Cluster) -> Response:
    """Brokers, topics and partitions as kafka_exporter names them."""
    registry = CollectorRegistry()
    registry.register(_Scrape(await _read(cluster)))
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")


class _Scrape:
    """What one scrape found, as a collector."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        """All of it."""
        return self._families


async def _read(cluster: ClusterAccess) -> list[GaugeMetricFamily]:
    brokers = await cluster.admin.list_brokers()
    topics = await cluster.admin.list_topics(include_internal=True)
    named = [(t.name, p.partition) for t in topics for p in t.partitions if p.leader_id >= 0]
    async with cluster.client.consumer() as consumer:
        ends = await consumer.end_offsets(named) if named else {}
        starts = await consumer.beginning_offsets(named) if named else {}
    count = GaugeMetricFamily("kafka_brokers", "Number of brokers in the cluster")
    count.add_metric([], len(brokers))
    info = GaugeMetricFamily("kafka_broker_info", "Brokers", labels=["id", "address"])
    for broker in brokers:
        info.add_metric([str(broker.broker_id), broker.kafka_endpoint or broker.grpc_endpoint], 1)
    families = [count, info, *_topic_families(topics)]
    for name, help_text, offsets in (
        ("kafka_topic_partition_current_offset", "Offset after the last record", ends),
        ("kafka_topic_partition_oldest_offset", "First offset", starts),
    ):
        family = GaugeMetricFamily(name, help_text, labels=["topic", "partition"])
        for key, offset in offsets.items():
            family.add_metric([key[0], str(key[1])], offset)
        families.append(family)
    return families


def _topic_families(topics: list[TopicDescription]) -> list[GaugeMetricFamily]:
    partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions", labels=["topic"])
    names = {
        "leader": "Id of the leader",
        "leader_is_preferred": "1 if the leader is the preferred one",
        "replicas": "Number of replicas",
        "in_sync_replica": "Number of in-sync replicas",
        "under_replicated_partition": "1 if replicas are out of sync",
    }
    families = {
        name: GaugeMetricFamily(
            f"kafka_topic_partition_{name}", text, labels=["topic", "partition"]
        )
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
    return [partitions, *families.values()]
