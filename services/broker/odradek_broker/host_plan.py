"""The settings of several brokers on one host, derived from one configuration (`odradek broker --processes N`).

Process k of N, counted from 0, gets these values instead of those in the configuration:

    node.id                                      node.id + k
    {id} in any value                            the node.id of the process
    log.dirs without {id}                        log.dirs/broker-ID
    ports of listeners and advertised.listeners  the port + 10 k; port 0 stays 0
    metrics.port, health.port                    the port + 10 k; 0 and -1 stay as they are

The values depend only on k, so a broker has the same directory and address after each restart. All other settings
are the same in all processes, including `host.id`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from odradek_broker.settings import BrokerSettings
from odradek_runtime.listeners import ListenerAddress, host_port
from odradek_runtime.settings import SettingsError, specs_of

PORT_STEP: Final = 10
PROCESSES_MAX: Final = 64
ID: Final = "{id}"
_PORT_MAX: Final = 65_535


def plan_host(settings: BrokerSettings, processes: int) -> list[dict[str, Any]]:
    """Return for each process a dict with its `id`, `metrics_host`, `log_format` and `settings`.

    Raises:
        SettingsError: a derived value is not valid; the message says what to change.
    """
    settings.check()
    if not 1 <= processes <= PROCESSES_MAX:
        raise SettingsError(
            f"--processes {processes} is out of range: choose 1 to {PROCESSES_MAX} processes"
        )
    if settings.metrics_port < 0:
        raise SettingsError(
            "metrics.port=-1 cannot be used with --processes, which checks at /readyz of the metrics port"
            " whether each broker is ready: set metrics.port to 0 or to a port"
        )
    if ID not in str(settings.log_dir) and (settings.log_dir / "meta.properties").exists():
        raise SettingsError(
            f"log.dirs={settings.log_dir} contains the data of a broker that was started without --processes:"
            f" stop that broker, and move its files to {settings.log_dir / f'broker-{settings.node_id}'}"
        )
    plans = [_process(settings, index) for index in range(processes)]
    _refuse_shared_ports([plan["settings"] for plan in plans])
    return plans


def _process(settings: BrokerSettings, index: int) -> dict[str, Any]:
    broker_id, shift = settings.node_id + index, PORT_STEP * index
    derived = {"node.id": str(broker_id)}
    for name, (field, _) in specs_of(BrokerSettings).items():
        value = getattr(settings, field.name)
        if isinstance(value, str | Path) and ID in str(value):
            derived[name] = str(value).replace(ID, str(broker_id))
    derived.setdefault("log.dirs", str(settings.log_dir / f"broker-{broker_id}"))
    for name, listeners in (
        ("listeners", settings.listeners),
        ("advertised.listeners", settings.advertised_listeners),
    ):
        if listeners:
            derived[name] = ",".join(
                _shifted(name, listener, broker_id, shift) for listener in listeners
            )
    for name, port in (
        ("metrics.port", settings.metrics_port),
        ("health.port", settings.health_port),
    ):
        derived[name] = str(_shifted_port(name, port, shift))
    return {
        "id": broker_id,
        "metrics_host": settings.metrics_host,
        "log_format": settings.log_format,
        "settings": derived,
    }


def _shifted(name: str, listener: ListenerAddress, broker_id: int, shift: int) -> str:
    moved = dataclasses.replace(
        listener,
        host=listener.host.replace(ID, str(broker_id)),
        port=_shifted_port(name, listener.port, shift),
    )
    return f"{moved.name}://{host_port(moved.host, moved.port)}"


def _shifted_port(name: str, port: int, shift: int) -> int:
    if port <= 0:
        return port
    if port + shift > _PORT_MAX:
        raise SettingsError(
            f"{name}: port {port} + {shift} is above {_PORT_MAX}: choose a lower port"
        )
    return port + shift


def _refuse_shared_ports(plans: list[dict[str, str]]) -> None:
    users: dict[int, str] = {}
    for plan in plans:
        ports = [("listeners", entry.rpartition(":")[2]) for entry in plan["listeners"].split(",")]
        ports += [(name, plan[name]) for name in ("metrics.port", "health.port")]
        for name, text in ports:
            port, user = int(text), f"{name} of broker {plan['node.id']}"
            if port <= 0:
                continue
            if port in users:
                raise SettingsError(
                    f"port {port} would be used twice, by {users[port]} and {user}: the ports of each process are"
                    f" {PORT_STEP} above those of the process before it, so choose ports that do not collide"
                )
            users[port] = user
