"""Liveness, readiness, metrics."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel

from odradek import errors
from odradek_gateway.rest.errors import errors_of
from odradek_gateway.rest.parameters import Cluster

router = APIRouter(tags=["health"])
PATHS: Final = frozenset({"/livez", "/readyz", "/_health"})
"""Told to everybody, and however busy the gateway is: a restart would help nobody."""
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


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
    if cluster.waits.is_stopping:
        return JSONResponse({"status": "stopping"}, 503)
    try:
        await cluster.client.connect(2.0)
    except errors.OdradekError as error:
        return JSONResponse({"status": "no broker answers", "reason": str(error)}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse, responses=errors_of(429, 500, 503))
async def metrics(request: Request) -> Response:
    """Brokers, topics, partitions and groups as kafka_exporter names them, and this gateway itself."""
    state = request.app.state
    of_cluster = CollectorRegistry()
    families = [*await state.cluster_metrics.families(), *state.certificate_expiry.families()]
    of_cluster.register(_Collected(families))
    state.request_metrics.instances.set(len(state.instances))
    text = generate_latest(of_cluster) + generate_latest(state.request_metrics.registry)
    return Response(text, media_type=_TEXT)


class _Collected(Collector):
    """What one scrape found."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        """All of it."""
        return self._families
