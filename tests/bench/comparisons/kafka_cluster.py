"""Runs a real Apache Kafka cluster: KRaft, combined nodes, default settings and JVM options, 1 GiB of heap for each
node.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from odradek.embedded import free_ports

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
"""Kafka's default JVM options (kafka-server-start.sh, kafka-run-class.sh)."""
_POM: Final = Path(__file__).with_name("kafka_pom.xml")


class KafkaCluster:
    """A Kafka cluster for benchmarks.

    `start` starts the cluster, and `pids` are the process ids of its nodes. The object is a context
    manager that stops the cluster on exit.
    """

    name: Final = "kafka"

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        nodes: int,
        settings: Sequence[str] = (),
        with_logins: bool = False,
    ) -> None:
        """Format the storage. `settings` are lines NAME=VALUE that are added to server.properties; `with_logins` adds
        a listener to each node where clients log in by SCRAM, at `login_ports`.
        """
        self._class_path = f"{jars}/*"
        self._nodes = [directory / f"node{number}" for number in range(1, nodes + 1)]
        self.login_ports = free_ports(nodes) if with_logins else []
        ports = free_ports(2 * nodes)
        self._client_ports, controller_ports = ports[:nodes], ports[nodes:]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._client_ports)
        self._processes: list[subprocess.Popen[bytes]] = []
        # The id has no dashes, because kafka-storage takes an id that begins with a dash for an option.
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster_id = cluster_id.replace("-", "A")
        voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in enumerate(controller_ports, 1))
        formats = []
        for number, node in enumerate(self._nodes, 1):
            node.mkdir(parents=True)
            (node / "server.properties").write_text(
                _properties(
                    number=number,
                    nodes=nodes,
                    voters=voters,
                    client_port=self._client_ports[number - 1],
                    controller_port=controller_ports[number - 1],
                    data=node / "data",
                    login_port=self.login_ports[number - 1] if with_logins else None,
                )
                + "".join(f"{setting}\n" for setting in settings)
            )
            formats.append(
                self._run(node, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c")
            )
        for process in formats:
            if process.wait(60) != 0:
                raise RuntimeError(f"Apache Kafka's storage is not formatted: see {directory}")

    def start(self) -> None:
        """Start every node without waiting for it."""
        self._processes = [self._run(node, "kafka.Kafka") for node in self._nodes]

    def kill(self, index: int) -> None:
        """Kill one node (SIGKILL)."""
        self._processes[index].kill()
        self._processes[index].wait()

    def start_again(self, index: int) -> None:
        """Start a node that was killed, without waiting for it."""
        self._processes[index] = self._run(self._nodes[index], "kafka.Kafka")

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the nodes; each is a broker and a controller."""
        return [process.pid for process in self._processes]

    @property
    def broker_pids(self) -> list[int]:
        """Return the process ids of the nodes, since each of them is a broker."""
        return self.pids

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, node: Path, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["java", *_JVM, "-cp", self._class_path, main, *arguments]
        with (node / "console.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(node / "server.properties")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"LOG_DIR": str(node)},
                start_new_session=True,
            )


def _properties(
    *,
    number: int,
    nodes: int,
    voters: str,
    client_port: int,
    controller_port: int,
    data: Path,
    login_port: int | None,
) -> str:
    listeners = f"PLAINTEXT://127.0.0.1:{client_port}"
    if login_port is not None:
        listeners += f",SASL_PLAINTEXT://127.0.0.1:{login_port}"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    replicas = min(nodes, 3)
    in_sync = min(nodes, 2)
    return (
        f"process.roles=broker,controller\nnode.id={number}\n"
        f"controller.quorum.voters={voters}\n"
        f"listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}\n"
        f"advertised.listeners={listeners}\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map="
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-256\n"
        f"listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={scram}\n"
        f"log.dirs={data}\nnum.partitions=1\nlog.segment.delete.delay.ms=1000\n"
        f"default.replication.factor={replicas}\nmin.insync.replicas={in_sync}\n"
        f"offsets.topic.replication.factor={replicas}\n"
        f"transaction.state.log.replication.factor={replicas}\n"
        f"transaction.state.log.min.isr={in_sync}\n"
        f"share.coordinator.state.topic.replication.factor={replicas}\n"
        f"share.coordinator.state.topic.min.isr={in_sync}\n"
    )


def fetch_jars(directory: Path) -> Path:
    """Return the directory with Kafka's jars.

    The first call fetches them with `mvn`, which needs a JDK and the network.
    """
    done = directory / ".done"
    if not done.exists():
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise SystemExit("bench-kafka needs java (17 or later) and Maven (mvn)")
        directory.mkdir(parents=True, exist_ok=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={directory.resolve()}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(_POM), *goal], check=True)
        done.touch()
    return directory
