"""Each command line tool of Apache Kafka works with Odradek or prints the reason why it does not, as the table in
docs/administration.md says.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.test_java_tools import jars

__all__ = ["jars"]
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]
DRIVER = Path(__file__).parent / "java_tools/AllTools.java"
DOCUMENT = Path(__file__).parents[3] / "docs/administration.md"
TIMEOUT_S = 800
NO_TELEMETRY = "brokers do not collect metrics from clients (KIP-714)"
TESTED_ELSEWHERE = frozenset(
    {
        *("kafka-console-producer", "kafka-console-consumer", "kafka-delete-records"),
        *("kafka-log-dirs", "kafka-dump-log", "kafka-broker-api-versions"),
        *("kafka-producer-perf-test", "kafka-consumer-perf-test", "connect-mirror-maker"),
        "kafka-replica-verification",
    }
)
"""Tools that test_java_tools.py, test_java_frameworks.py and test_replica_verification.py run."""


def commands(topic: str, folder: Path) -> list[tuple[str, str, str, int, str]]:
    """Return tools, their classes and arguments, with the exit status and a text of the output that each must have."""
    moves, elections = folder / "moves.json", folder / "elections.json"
    place = {"topic": topic, "partition": 0}
    moves.write_text(json.dumps({"version": 1, "partitions": [{**place, "replicas": [1]}]}))
    elections.write_text(json.dumps({"partitions": [place]}))
    configs, groups = "kafka.admin.ConfigCommand", "consumer.group.ConsumerGroupCommand"
    reassign = "reassign.ReassignPartitionsCommand"
    return [
        ("kafka-topics", "TopicCommand", f"--create --topic {topic}", 0, "Created topic"),
        (
            "kafka-configs",
            configs,
            f"--alter --entity-type topics --entity-name {topic} --add-config compression.type=zstd,flush.messages=9",
            0,
            "Completed updating",
        ),
        (
            "kafka-configs",
            configs,
            f"--alter --entity-type groups --entity-name {topic} --add-config consumer.session.timeout.ms=50000",
            0,
            "Completed updating",
        ),
        (
            "kafka-configs",
            configs,
            f"--describe --entity-type groups --entity-name {topic}",
            0,
            "consumer.session.timeout.ms=50000",
        ),
        (
            "kafka-configs",
            configs,
            f"--alter --entity-type users --entity-name {topic} --add-config producer_byte_rate=1000000",
            0,
            "Completed updating",
        ),
        (
            "kafka-configs",
            configs,
            f"--describe --entity-type users --entity-name {topic}",
            0,
            "producer_byte_rate=1000000",
        ),
        (
            "kafka-configs",
            configs,
            "--alter --entity-type client-metrics --entity-name m --add-config interval.ms=60000",
            1,
            NO_TELEMETRY,
        ),
        ("kafka-client-metrics", "ClientMetricsCommand", "--list", 0, ""),
        (
            "kafka-client-metrics",
            "ClientMetricsCommand",
            "--alter --name m --interval 60000",
            1,
            NO_TELEMETRY,
        ),
        (
            "kafka-reassign-partitions",
            reassign,
            f"--execute --throttle 1000000 --reassignment-json-file {moves}",
            0,
            "throttle limit was set to 1000000",
        ),
        (
            "kafka-reassign-partitions",
            reassign,
            f"--verify --reassignment-json-file {moves}",
            0,
            "Clearing broker-level throttles",
        ),
        ("kafka-reassign-partitions", reassign, "--list", 0, "No partition reassignments found"),
        (
            "kafka-leader-election",
            "LeaderElectionCommand",
            f"--election-type preferred --path-to-json-file {elections}",
            0,
            f"{topic}-0",
        ),
        ("kafka-transactions", "TransactionsCommand", "list", 0, "TransactionalId"),
        (
            "kafka-transactions",
            "TransactionsCommand",
            f"describe-producers --topic {topic} --partition 0",
            0,
            "ProducerEpoch",
        ),
        (
            "kafka-transactions",
            "TransactionsCommand",
            "find-hanging --broker-id 1",
            0,
            "StartOffset",
        ),
        (
            "kafka-verifiable-producer",
            "VerifiableProducer",
            f"--topic {topic} --max-messages 20",
            0,
            "startup_complete",
        ),
        (
            "kafka-verifiable-consumer",
            "VerifiableConsumer",
            f"--topic {topic} --group-id {topic} --max-messages 20 --reset-policy earliest",
            0,
            "",
        ),
        (
            "kafka-e2e-latency",
            "EndToEndLatency",
            f"--topic {topic} --num-records 20 --producer-acks 1 --record-size 100",
            0,
            "Avg latency",
        ),
        ("kafka-get-offsets", "GetOffsetShell", f"--topic {topic} --time -1", 0, f"{topic}:0:"),
        ("kafka-consumer-groups", groups, "--list --state", 0, topic),
        ("kafka-groups", "GroupsCommand", "--list", 0, topic),
        ("kafka-share-groups", "consumer.group.ShareGroupCommand", "--list", 0, ""),
        ("kafka-streams-groups", "streams.StreamsGroupCommand", "--list", 0, ""),
        ("kafka-acls", "AclCommand", "--list", 1, "the cluster enforces no ACLs"),
        (
            "kafka-delegation-tokens",
            "DelegationTokenCommand",
            "--describe --command-config /dev/null",
            1,
            "does not support DESCRIBE_DELEGATION_TOKEN",
        ),
        ("kafka-cluster", "ClusterTool", "cluster-id", 0, "Cluster ID: "),
        ("kafka-cluster", "ClusterTool", "list-endpoints", 0, "unfenced"),
        ("kafka-metadata-quorum", "MetadataQuorumCommand", "describe --replication", 0, "Leader"),
        ("kafka-features", "FeatureCommand", "describe", 0, "transaction.version"),
    ]


def test_each_tool_passes_or_says_why_not(
    jars: Path, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    chosen = commands(topic, tmp_path)
    lines = []
    for _, tool, arguments, *_ in chosen:
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        words = arguments.split()
        # Tools with subcommands take the address before or after the subcommand; ClusterTool takes it only after.
        at = 1 if tool == "ClusterTool" else 0
        words[at:at] = ["--bootstrap-server", cluster.kafka_bootstrap]
        lines.append("\t".join((name, *words)))
    script = tmp_path / "commands"
    script.write_text("\n".join(lines) + "\n")
    java = ["java", "-Xmx400M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    ran = subprocess.run(
        [*java, str(DRIVER), str(script)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    outputs = re.split(r"^==== (-?\d+)\n", ran.stdout, flags=re.M)[1:]
    assert len(outputs) == 2 * len(chosen), ran.stdout + ran.stderr
    wrong = [
        (tool, arguments, status, output)
        for (_, tool, arguments, wanted, text), status, output in zip(
            chosen, outputs[::2], outputs[1::2], strict=True
        )
        if int(status) != wanted or text not in output
    ]
    assert not wrong


def test_the_table_of_the_documentation_has_the_tools_that_are_tested(tmp_path: Path) -> None:
    listed = set(
        re.findall(
            r"`((?:kafka|connect)-[a-z0-9-]+)`",
            DOCUMENT.read_text().partition("## Kafka's command line tools")[2],
        )
    )
    assert listed == {tool for tool, *_ in commands("t", tmp_path)} | TESTED_ELSEWHERE
