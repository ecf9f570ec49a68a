"""Responses of a process to liveness and readiness probes, over a real connection."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odradek_runtime.grpc_endpoints import Health, Probes, new_server

SERVING = health_pb2.HealthCheckResponse.SERVING


async def told(port: int) -> dict[str, bool]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return {
            service: (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
            == SERVING
            for service in ("startup", "liveness", "readiness")
        }


async def test_each_service_tells_its_own_check() -> None:
    wrong = {"live": "", "ready": "still starting"}
    health = Health(new_server())
    probes = Probes(
        health, why_not_live=lambda: wrong["live"], why_not_ready=lambda: wrong["ready"]
    )
    await probes.report()
    port = await health.open_for_probes("127.0.0.1", 0)
    try:
        assert await told(port) == {"startup": True, "liveness": True, "readiness": False}
        wrong["ready"] = ""
        await probes.report()
        assert await told(port) == {"startup": True, "liveness": True, "readiness": True}
        wrong.update(live="a disk error", ready="a disk error")
        await probes.report()
        assert await told(port) == {"startup": True, "liveness": False, "readiness": False}
    finally:
        await health.close()
