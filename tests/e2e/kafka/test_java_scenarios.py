"""Apache Kafka's Java tools in the scenarios of docs/clients.md: headers, nulls, groups, time,
configuration, logins and ACLs.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from odradek.embedded import EmbeddedCluster
from tests.e2e.kafka.access import (
    MECHANISMS,
    PASSWORD,
    make_topic,
    produce,
    static_members,
)
from tests.e2e.kafka.conftest import Guarded
from tests.e2e.kafka.test_java_tools import TIMEOUT_S, Tools, jars, tools

__all__ = ["jars", "tools"]  # fixtures
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(600)]
READER = "--reader-property"
FORMATTER = "--formatter-property"


@pytest.mark.scenario("java", "headers", "nulls")
def test_headers_and_nulls(tools: Tools, topic: str) -> None:
    reader = ["parse.headers=true", "parse.key=true", "null.marker=NIL"]
    options = [word for one in reader for word in (READER, one)]
    lines = "h:1,empty:\tkey\tvalue\nh:2\ttombstone\tNIL\nh:3\tNIL\tno key\n"
    tools.run("ConsoleProducer", "--topic", topic, *options, stdin=lines)
    shows = ["print.headers=true", "print.key=true", "null.literal=NIL"]
    read = tools.consume(topic, 3, *(word for one in shows for word in (FORMATTER, one)))
    assert read == lines


class GroupMember:
    """A console consumer that stays in a group."""

    def __init__(self, tools: Tools, topic: str, protocol: str) -> None:
        arguments = ["--topic", topic, "--group", f"g-{topic}"]
        for one in (f"group.protocol={protocol}", "client.id=java"):
            arguments += ["--command-property", one]
        self._process = subprocess.Popen(
            tools.command("consumer.ConsoleConsumer", *arguments),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self.errors.extend(lines)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)


def until_shared(bootstrap: str, group: str, shares: list[int]) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + TIMEOUT_S
    owned: list[int] = []
    while owned != shares:
        assert time.monotonic() < deadline, owned
        described = client.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        owned = sorted(len(m.assignment.topic_partitions) for m in described.members)


@pytest.mark.scenario("java", "rebalance", "migration")
def test_members_roll_over_from_classic_to_consumer_and_back(
    tools: Tools, topic: str, bootstrap: str, cluster: EmbeddedCluster
) -> None:
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), topic, 4)
    members = [GroupMember(tools, topic, "classic") for _ in range(2)]
    try:
        until_shared(bootstrap, f"g-{topic}", [2, 2])
        for protocol in ("consumer", "consumer", "classic", "classic"):
            members.append(GroupMember(tools, topic, protocol))
            until_shared(bootstrap, f"g-{topic}", [1, 1, 2])
            members.pop(0).close()
            until_shared(bootstrap, f"g-{topic}", [2, 2])
    finally:
        for member in members:
            member.close()
    segments = cluster.broker_data_dir(1).glob("__consumer_offsets-*/*.log")
    files = ",".join(str(one) for one in segments if one.stat().st_size)
    options = ["--offsets-decoder", "--deep-iteration", "--files", files]
    dumped = tools.run("DumpLogSegments", *options, remote=False).splitlines()
    ours = [line for line in dumped if f'"groupId":"g-{topic}"' in line]
    mixed = [line for line in ours if '"classicMemberMetadata":{"sessionTimeoutMs":45000' in line]
    assert any('"name":"range"' in line for line in mixed), ours
    complaints = [line for member in members for line in member.errors if "ERROR" in line]
    assert not complaints


@pytest.mark.scenario("java", "static member")
def test_a_static_member_comes_back(tools: Tools, topic: str, bootstrap: str) -> None:
    tools.run("ConsoleProducer", "--topic", topic, stdin="a\nb\n")
    properties = [
        *("--command-property", "group.instance.id=one"),
        *("--command-property", "max.poll.records=1"),
    ]
    for expected in ("a\n", "b\n"):
        assert tools.consume(topic, 1, "--group", f"g-{topic}", *properties) == expected
    assert static_members(bootstrap, f"g-{topic}") == ["one"]


@pytest.mark.scenario("java", "seek by time")
def test_seeking_by_time(tools: Tools, topic: str, bootstrap: str) -> None:
    times = [1000 * (n + 1) for n in range(9)]
    produce(bootstrap, topic, [b"%d" % n for n in range(9)], timestamps_ms=times)
    found = tools.run("GetOffsetShell", "--topic", topic, "--time", "4500")
    assert found.strip() == f"{topic}:0:4"
    group = ["--group", f"g-{topic}", "--topic", topic]
    reset = ["--reset-offsets", "--to-datetime", "1970-01-01T00:00:04.500Z", "--execute"]
    tools.run("consumer.group.ConsumerGroupCommand", *group, *reset)
    read = tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", topic, "--group", f"g-{topic}"),
        "--max-messages",
        "5",
    )
    assert read.split() == ["4", "5", "6", "7", "8"]


def test_configs(tools: Tools, topic: str) -> None:
    tools.run("TopicCommand", "--create", "--topic", topic)
    entity = ["--entity-type", "topics", "--entity-name", topic]
    tools.run("kafka.admin.ConfigCommand", *entity, "--alter", "--add-config", "retention.ms=5000")
    assert "retention.ms=5000" in tools.run("kafka.admin.ConfigCommand", *entity, "--describe")
    tools.run("kafka.admin.ConfigCommand", *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=5000" not in tools.run("kafka.admin.ConfigCommand", *entity, "--describe")
    brokers = ["--entity-type", "brokers", "--entity-name", "1", "--describe", "--all"]
    assert "offsets.topic.num.partitions=50" in tools.run("kafka.admin.ConfigCommand", *brokers)


@pytest.mark.scenario("java", "sasl", "sasl over tls", "acl denied")
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("listener", ["KAFKA_SASL", "KAFKA_TLS"])
def test_login_and_rights(
    jars: Path, guarded: Guarded, topic: str, tmp_path: Path, mechanism: str, listener: str
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    own = Tools(jars, f"127.0.0.1:{guarded.ports['KAFKA']}")
    users = ["--entity-type", "users", "--entity-name", user]
    own.run(
        "kafka.admin.ConfigCommand",
        *users,
        "--alter",
        "--add-config",
        f"{mechanism}=[password={PASSWORD}]",
    )
    own.run("TopicCommand", "--create", "--topic", topic)
    login = tmp_path / "client.properties"
    is_tls = listener == "KAFKA_TLS"
    login.write_text(
        f"security.protocol={'SASL_SSL' if is_tls else 'SASL_PLAINTEXT'}\n"
        + (f"ssl.truststore.type=PEM\nssl.truststore.location={guarded.ca}\n" if is_tls else "")
        + f"sasl.mechanism={mechanism}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{PASSWORD}";\n'
    )
    theirs = Tools(jars, f"127.0.0.1:{guarded.ports[listener]}")
    config = ["--topic", topic, "--command-config", str(login)]
    refused = theirs.run("ConsoleProducer", *config, stdin="denied\n", complains=True)
    assert "AuthorizationException" in refused
    principal = ["--allow-principal", f"User:{user}"]
    own.run("AclCommand", "--add", *principal, "--producer", "--topic", topic)
    own.run("AclCommand", "--add", *principal, "--consumer", "--topic", topic, "--group", "*")
    assert f"principal=User:{user}" in own.run("AclCommand", "--list", "--topic", topic)
    theirs.run("ConsoleProducer", *config, stdin="allowed\n")
    assert theirs.consume(topic, 1, "--command-config", str(login)) == "allowed\n"
    own.run("AclCommand", "--remove", "--force", "--topic", topic)
    again = theirs.run("ConsoleProducer", *config, stdin="denied\n", complains=True)
    assert "AuthorizationException" in again
    assert re.search(r"Topic authorization failed|Not authorized", again)
