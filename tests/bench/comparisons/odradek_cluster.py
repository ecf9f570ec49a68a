"""Runs Odradek as one side of the comparison: brokers and one controller with default settings."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final, Self

from odradek.embedded import ClusterPlan, EmbeddedCluster


class OdradekCluster:
    """A cluster of Odradek with the interface of KafkaCluster."""

    def __init__(self, directory: Path, *, nodes: int, name: str = "odradek") -> None:
        self.name: Final = name
        settings = (f"min.insync.replicas={min(nodes, 2)}",)
        self._cluster = EmbeddedCluster(
            ClusterPlan(brokers=nodes, controllers=1, data_dir=directory, settings=settings)
        )
        self.bootstrap = self._cluster.kafka_bootstrap

    def start(self) -> None:
        """Start every process without waiting for it."""
        self._cluster.start()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the brokers and the controller."""
        return [child.pid for child in self._cluster.children() if child.pid is not None]

    @property
    def broker_pids(self) -> list[int]:
        """Return the process ids of the brokers."""
        return [child.pid for child in self._cluster.brokers.values() if child.pid is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.stop()
