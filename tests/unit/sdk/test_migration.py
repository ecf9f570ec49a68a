"""Migration of Kafka's server.properties: each setting gets a verdict, and the result is a valid
configuration.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from odradek.cli.migration import (
    BROKER,
    CONTROLLER,
    INERT,
    UNSUPPORTED,
    Plan,
    app,
    plan_import,
    read_kafka_properties,
)
from odradek_broker.settings import BrokerSettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.settings import load_settings, specs_of

# The settings of config/server.properties as Apache Kafka 4 comes with it.
STOCK = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
KNOWN = {
    role: {name: list(spec.aliases) for name, (_, spec) in specs_of(settings).items()}
    for role, settings in ((BROKER, BrokerSettings), (CONTROLLER, QuorumProcessSettings))
}


def plan(text: str, tmp_path: Path, *, voters: str = "") -> Plan:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return plan_import(read_kafka_properties(path), KNOWN, host="kafka-1.example", voters=voters)


def verdicts(done: Plan) -> dict[str, str]:
    return {verdict.name: verdict.verdict for verdict in done.verdicts}


def test_kafkas_own_file_becomes_two_valid_files(tmp_path: Path) -> None:
    done = plan(STOCK, tmp_path)
    assert done.lacks == []
    broker = load_settings(
        BrokerSettings,
        env={},
        env_prefix="NONE_",
        assignments=[f"{name}={value}" for name, value in done.files[BROKER].items()],
    )
    broker.check()
    assert [listener.name for listener in broker.listeners] == ["PLAINTEXT", "GRPC", "REPLICATION"]
    assert broker.security_protocol("PLAINTEXT") == "PLAINTEXT"
    assert broker.controllers == ((1, "localhost", 9094),)
    assert broker.log_dir == Path("/tmp/kraft-combined-logs-odradek")
    quorum = load_settings(
        QuorumProcessSettings,
        env={},
        env_prefix="NONE_",
        assignments=["cluster.id=x", *(f"{n}={v}" for n, v in done.files[CONTROLLER].items())],
    )
    quorum.check()
    assert quorum.initial_configs() == (("num.partitions", "1"),)
    assert quorum.listener("RAFT").port == 9093
    assert quorum.listener("CONTROLLER").port == 9094


def test_every_setting_has_one_verdict(tmp_path: Path) -> None:
    done = plan(STOCK, tmp_path)
    names = {line.partition("=")[0] for line in STOCK.splitlines()}
    given = verdicts(done)
    assert given.keys() == names
    assert len(done.verdicts) == len(given)
    assert given["num.io.threads"] == "inert"
    assert given["log.segment.bytes"] == "kept"
    assert given["listeners"] == "translated"
    assert all(v.note for v in done.verdicts)


def test_what_is_missing_here_is_reported_with_a_way_out_all_at_once(tmp_path: Path) -> None:
    more = "ssl.keystore.location=/k.jks\nsasl.kerberos.service.name=kafka\nnum.bogus=1\n"
    lacks = {v.name: v for v in plan(STOCK + more, tmp_path).lacks}
    assert lacks.keys() == {"ssl.keystore.location", "sasl.kerberos.service.name", "num.bogus"}
    assert "ssl.certificate.location" in lacks["ssl.keystore.location"].note
    assert lacks["num.bogus"].verdict == "unknown"


def test_a_misspelt_setting_is_reported_with_the_one_that_is_meant(tmp_path: Path) -> None:
    (misspelt,) = plan(STOCK + "compresion.type=zstd\n", tmp_path).lacks
    assert misspelt.note == (
        "this program does not know the setting: did you mean compression.type?"
    )


def test_settings_that_ask_for_what_is_so_anyway_are_inert(tmp_path: Path) -> None:
    asked = verdicts(
        plan("node.id=1\ndelete.topic.enable=true\nlog.cleaner.enable=true\n", tmp_path)
    )
    assert asked["delete.topic.enable"] == asked["log.cleaner.enable"] == "inert"
    refused = verdicts(plan("node.id=1\ndelete.topic.enable=false\n", tmp_path))
    assert refused["delete.topic.enable"] == "unsupported"


def test_a_brokers_file_leaves_configs_of_the_cluster_to_commands(tmp_path: Path) -> None:
    text = (
        "process.roles=broker\nnode.id=4\nmin.insync.replicas=2\n"
        "controller.quorum.voters=1@a:9093,2@b:9093\nlisteners=CLIENTS://:9092\n"
        "listener.security.protocol.map=CLIENTS:PLAINTEXT\n"
    )
    done = plan(text, tmp_path)
    assert done.commands == ["odradek cluster config --set min.insync.replicas=2"]
    assert done.files.keys() == {BROKER}
    settings = done.files[BROKER]
    assert settings["controller.rpc.endpoints"] == "1@a:9094,2@b:9094"
    assert settings["advertised.listeners"].startswith("CLIENTS://kafka-1.example:9092,GRPC://")


def test_controllers_without_ids_are_asked_for(tmp_path: Path) -> None:
    text = "process.roles=broker\nnode.id=4\ncontroller.quorum.bootstrap.servers=a:9093,b:9093\n"
    [lack] = plan(text, tmp_path).lacks
    assert "--voters" in lack.note
    told = plan(text, tmp_path, voters="1@a:9093,2@b:9093")
    assert told.lacks == []
    assert told.files[BROKER]["controller.rpc.endpoints"] == "1@a:9094,2@b:9094"


def test_a_second_data_directory_is_not_dropped_in_silence(tmp_path: Path) -> None:
    [lack] = plan("node.id=1\nlog.dirs=/d1,/d2\n", tmp_path).lacks
    assert "one broker for each disk" in lack.note


def test_ports_that_the_file_uses_are_not_taken_twice(tmp_path: Path) -> None:
    text = STOCK.replace("PLAINTEXT://:9092", "PLAINTEXT://:9090").replace(":9093", ":9091")
    done = plan(text, tmp_path)
    ports = [
        address.rpartition(":")[2]
        for settings in done.files.values()
        for address in settings["listeners"].split(",")
    ]
    assert len(ports) == len(set(ports)), ports


@pytest.mark.parametrize("table", [INERT, UNSUPPORTED])
def test_no_setting_of_ours_is_called_inert_or_unsupported(table: dict[str, str]) -> None:
    own = {name for names in KNOWN.values() for name in names} - {"log.dirs"}
    assert own.isdisjoint(table)
    assert all(table.values())


def test_the_command_writes_files_and_fails_for_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(STOCK + "num.bogus=1\n")
    command = [sys.executable, "-m", "odradek.cli.main", "config", "import", "server.properties"]
    done = subprocess.run(
        [*command, "-o", "json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert {"setting": "num.bogus", "verdict": "unknown"}.items() <= json.loads(done.stdout)[
        0
    ].items()
    assert "node.id=1\n" in (tmp_path / "broker.properties").read_text()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "replace it with --force" in again.stderr


def test_a_file_in_javas_encoding_of_properties_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("# für München\r\nnode.id=1\r\nbroker.rack=Köln\\\r\n-1\r\n".encode("latin-1"))
    assert read_kafka_properties(path) == {"node.id": "1", "broker.rack": "Köln-1"}
    path.write_text("broker.rack=Köln\n", encoding="utf-8")
    assert read_kafka_properties(path) == {"broker.rack": "Köln"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a comment \\\na=1\n", {"a": "1"}),
        ("! a comment \\\n\\\na=1\n", {"a": "1"}),
        ("a=1,\\\n   2,\\\n\t#3\nb=4", {"a": "1,2,#3", "b": "4"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\n2", {"a": "1\\2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\ \nb=2", {"a": "1", "b": "2"}),
        ("a : 1\nb\t2\nc=\n  d==1", {"a": "1", "b": "2", "c": "", "d": "=1"}),
        (r"a\:b\=c\ d=C\:\\x", {"a:b=c d": r"C:\x"}),
        (r"a=\u00fc\t\n\q\ud83d\ude00", {"a": "ü\t\nq\U0001f600"}),
        ("a=x\u2028y\rb=1", {"a": "x\u2028y", "b": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(
    text: str, expected: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(text.encode())
    assert read_kafka_properties(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\nb\n", ":2: the line 'b' does not have the form name=value"),
        ("=1\n", ":1: the line '=1' does not have the form name=value"),
        ("a=\\u12\n", "has an invalid"),
        ("a=\\ud800\n", "has an invalid"),
        ("node.id=1\nbroker.id=2\n", "node.id is 1, but broker.id is 2"),
        ("controller.quorum.voters=1@c1\n", "controller.quorum.voters has 1@c1: write ID@HOST"),
        ("controller.quorum.voters=c1:9093\n", "controller.quorum.voters has c1:9093"),
        ("controller.quorum.voters=1@c:99999\n", "controller.quorum.voters has 1@c:99999"),
        ("listeners=PLAINTEXT://h\n", "listeners has PLAINTEXT://h: write NAME://HOST:PORT"),
        ("advertised.listeners=A://h\n", "advertised.listeners has A://h"),
        (
            "process.roles=controller\ncontroller.quorum.bootstrap.servers=c\n",
            "controller.quorum.bootstrap.servers has c: write HOST:PORT",
        ),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused_by_the_setting(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        plan(text, tmp_path)
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_equal_ids_are_accepted(tmp_path: Path) -> None:
    assert plan("node.id=4\nbroker.id=4\n", tmp_path).files[BROKER]["node.id"] == "4"


def test_printed_commands_quote_paths(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(STOCK.replace("/tmp/kraft", "/tmp/my logs/kraft"))
    done = CliRunner().invoke(
        app,
        ["import", str(tmp_path / "server.properties"), "--to", str(tmp_path / "a b")],
    )
    assert f"--config '{tmp_path}/a b/broker.properties'" in done.stdout, done.output
    assert "--data-dir '/tmp/my logs/kraft-combined-logs-odradek-quorum'" in done.stdout


def test_a_value_that_a_file_of_ours_cannot_contain_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("node.id=1\nbroker.rack=a\\nb\n")
    done = CliRunner().invoke(
        app, ["import", str(tmp_path / "server.properties"), "--to", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert "broker.rack" in done.stderr
    assert not (tmp_path / "out" / "broker.properties").exists()
