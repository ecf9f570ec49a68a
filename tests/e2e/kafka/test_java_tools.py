"""Apache Kafka's own Java tools, from Maven Central, against an Odradek cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from odradek.embedded import EmbeddedCluster
from tests.tools import need

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TIMEOUT_S = 90


@pytest.fixture(scope="session")
def jars() -> Path:
    """Return the folder with the tools' jars, which are fetched once and kept under build/.

    The environment variable ODRADEK_KAFKA_TOOLS names another folder.
    """
    configured = os.environ.get("ODRADEK_KAFKA_TOOLS")
    folder = Path(configured) if configured else ROOT / "build" / "kafka-tools"
    return fetched("pom.xml", folder, "connect-mirror-*.jar")


@pytest.fixture(scope="session")
def jars_3_7() -> Path:
    """Return the folder with the jars of Kafka 3.7, the last release whose clients fail at responses
    that later clients accept (KAFKA-17492).
    """
    return fetched("kafka_3_7.xml", ROOT / "build" / "kafka-tools-3.7", "kafka_2.13-*.jar")


def fetched(project: str, folder: Path, last: str) -> Path:
    """Return the folder with the dependencies of the Maven project, which are fetched if needed."""
    if not any(folder.glob(last)):
        need("Maven and a JDK")
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(HERE / "java_tools" / project),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={folder}",
            ],
            check=True,
            timeout=500,
        )
    return folder


class Tools:
    """Runs Kafka's tools, one at a time."""

    def __init__(self, jars: Path, bootstrap: str) -> None:
        self._jars = jars
        self.bootstrap = bootstrap

    def command(self, tool: str, *arguments: str, remote: bool = True) -> list[str]:
        """Return the command that runs `tool`, a class; its package is org.apache.kafka.tools
        unless the name has another.
        """
        where = ["--bootstrap-server", self.bootstrap] if remote else []
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        java = ["java", "-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, "-cp", f"{self._jars}/*", name, *where, *arguments]

    def run(
        self,
        tool: str,
        *arguments: str,
        stdin: str = "",
        remote: bool = True,
        complains: bool = False,
    ) -> str:
        """Run a tool and return its standard output; if `complains` is set, also its error
        output.
        """
        ran = subprocess.run(
            self.command(tool, *arguments, remote=remote),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert complains or ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr if complains else ran.stdout

    def consume(self, topic: str, count: int, *arguments: str) -> str:
        """Return this many records from the beginning, read by the console consumer."""
        how = ["--topic", topic, "--from-beginning", "--max-messages", str(count)]
        return self.run("consumer.ConsoleConsumer", *how, *arguments)


@pytest.fixture
def tools(jars: Path, bootstrap: str) -> Tools:
    return Tools(jars, bootstrap)


@pytest.mark.scenario("java", "create", "alter", "describe", "delete")
def test_topics(tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    assert topic in tools.run("TopicCommand", "--list").split()
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 5" in described
    tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools.run("TopicCommand", "--list").split()


def test_console_producer_and_consumer(tools: Tools, topic: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(1000))
    tools.run("ConsoleProducer", "--topic", topic, stdin=lines)
    read = tools.run(
        "consumer.ConsoleConsumer",
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "1000",
        "--group",
        f"g-{topic}",
    )
    assert read == lines
    described = tools.run(
        "consumer.group.ConsumerGroupCommand", "--describe", "--group", f"g-{topic}"
    )
    [row] = [line.split() for line in described.splitlines() if topic in line.split()]
    assert row[3:6] == ["1000", "1000", "0"], described
    offsets = tools.run("GetOffsetShell", "--topic", topic)
    assert offsets.strip() == f"{topic}:0:1000"


def test_clients_of_kafka_3_7(jars_3_7: Path, bootstrap: str, topic: str) -> None:
    old = Tools(jars_3_7, bootstrap)
    old.run("kafka.tools.ConsoleProducer", "--topic", topic, stdin="a\nb\n")
    how = ["--topic", topic, "--from-beginning", "--max-messages", "2", "--group", f"g-{topic}"]
    assert old.run("kafka.tools.ConsoleConsumer", *how) == "a\nb\n"
    described = old.run("kafka.admin.ConsumerGroupCommand", "--describe", "--group", f"g-{topic}")
    [row] = [line.split() for line in described.splitlines() if topic in line.split()]
    assert row[3:6] == ["2", "2", "0"], described


@pytest.mark.scenario("java", "consumer protocol")
def test_the_consumer_protocol(tools: Tools, topic: str) -> None:
    tools.run("ConsoleProducer", "--topic", topic, stdin="a\nb\n")
    read = tools.run(
        "consumer.ConsoleConsumer",
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "2",
        "--command-property",
        "group.protocol=consumer",
    )
    assert read == "a\nb\n"


@pytest.mark.scenario("java", "compression")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_performance_tools_and_the_segments_they_leave(
    tools: Tools, topic: str, cluster: EmbeddedCluster, compression: str
) -> None:
    produced = tools.run(
        "ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--record-size",
        "500",
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={tools.bootstrap}",
        "acks=all",
        f"compression.type={compression}",
        remote=False,
    )
    assert "20000 records sent" in produced
    consumed = tools.run(
        "ConsumerPerformance", "--topic", topic, "--messages", "20000", "--timeout", "30000"
    )
    assert consumed.splitlines()[-1].split(", ")[4] == "20000"
    segment = next((cluster.broker_data_dir(1) / f"{topic}-0").glob("*.log"))
    dumped = tools.run("DumpLogSegments", "--deep-iteration", "--files", str(segment), remote=False)
    assert dumped.count("| offset: ") == 20000
    assert "isvalid: false" not in dumped


def test_the_group_offsets_read_as_kafkas(
    tools: Tools, topic: str, cluster: EmbeddedCluster
) -> None:
    tools.run("ConsoleProducer", "--topic", topic, stdin="a\n")
    tools.run(
        "consumer.ConsoleConsumer",
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "1",
        "--group",
        f"g-{topic}",
    )
    segments = cluster.broker_data_dir(1).glob("__consumer_offsets-*/*.log")
    files = ",".join(str(one) for one in segments if one.stat().st_size)
    dumped = tools.run(
        "DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files", files, remote=False
    )
    assert f'"group":"g-{topic}"' in dumped
    assert f'"topic":"{topic}"' in dumped
    assert '"offset":1' in dumped


def test_the_cluster_describes_itself(tools: Tools, topic: str, tmp_path: Path) -> None:
    assert "LeaderId" in tools.run("MetadataQuorumCommand", "describe", "--status")
    described = tools.run("FeatureCommand", "describe")
    levels = dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (.+?)\s+Epoch:", described))
    assert levels["group.version"] == "1"
    assert "3" in levels["metadata.version"], "the tool knows names for Kafka's levels only"
    assert levels["transaction.version"] == "2"
    assert "ApiVersions(18): 0 to 5" in tools.run("BrokerApiVersionsCommand")
    tools.run("ConsoleProducer", "--topic", topic, stdin="a\nb\nc\n")
    described = tools.run("LogDirsCommand", "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in described
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps(wanted))
    assert "low_watermark: 2" in tools.run("DeleteRecordsCommand", "--offset-json-file", str(path))
