"""A real Apache Kafka broker (KRaft, one node, stock settings, 1 GiB heap) for the benchmark."""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from odradek.embedded.free_ports import free_ports

START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 30.0
_JVM: Final = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""Kafka's stock options."""


class KafkaBroker:
    """Use as a context."""

    def __init__(self, jars: Path, directory: Path) -> None:
        self._class_path = f"{jars}/*"
        self._directory = directory
        clients, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{clients}"
        self._port = clients
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        self._properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{clients}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={directory / 'data'}\nnum.partitions=1\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            "share.coordinator.state.topic.replication.factor=1\n"
            "share.coordinator.state.topic.min.isr=1\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running JVM."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        log = (self._directory / "console.log").open("ab")
        with log:
            subprocess.run(
                self._java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"),
                check=True,
                stdout=log,
                stderr=log,
            )
            self._process = subprocess.Popen(
                self._java("kafka.Kafka"), stdout=log, stderr=log, start_new_session=True
            )
        deadline_s = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    tail = (self._directory / "console.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"Apache Kafka does not start:\n{tail}") from None
                time.sleep(0.1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *_JVM, "-cp", self._class_path, main, *arguments, str(self._properties)]
