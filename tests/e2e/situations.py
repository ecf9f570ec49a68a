"""Mistakes of users and operators: each function makes one mistake, and returns the error message that it causes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster, free_ports
from odradek.errors import OdradekError
from odradek_protocol.records.builder import BatchBuilder
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from odradek_protocol.rpc.v1 import broker_service_pb2_grpc

Act = Callable[[EmbeddedCluster], str]


@dataclass(frozen=True, slots=True)
class Situation:
    """A row of the table. In `message`, `...` marks the parts that differ from case to case."""

    name: str
    message: str
    act: Act


SITUATIONS: list[Situation] = []


def _row(name: str, message: str) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        SITUATIONS.append(Situation(name, message, act))
        return act

    return add


# --- clients ----------------------------------------------------------------------------------------


@_row(
    "a topic that does not exist",
    "topic 'nosuch' does not exist; create it (`odradek topic create nosuch`), or check the name",
)
def _unknown_topic(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "consume", "nosuch", "--from-beginning", "--exit-at-end")


@_row("a partition that does not exist", "topic 'orders' has 1 partitions, but no partition 7...")
def _unknown_partition(cluster: EmbeddedCluster) -> str:
    _topic(cluster, "orders")
    return _cli(cluster, "produce", "orders", "--partition", "7", stdin="x\n")


@_row(
    "a record larger than max.message.bytes of the topic",
    "...is larger than max.message.bytes (1000); raise the topic's max.message.bytes (and the "
    "producer's request_bytes_max, if it is lower), or split the record",
)
def _too_large(cluster: EmbeddedCluster) -> str:
    _topic(cluster, "small", "--config", "max.message.bytes=1000")
    return _cli(cluster, "produce", "small", stdin="x" * 2_000 + "\n")


@_row("a record without a key for a compacted topic", "...without a key: the topic is compacted...")
def _no_key(cluster: EmbeddedCluster) -> str:
    _topic(cluster, "compacted", "--config", "cleanup.policy=compact")
    return _cli(cluster, "produce", "compacted", stdin="x\n")


@_row("a batch that was damaged on the network", "batch at byte 0: the CRC32C is wrong")
def _wrong_crc(cluster: EmbeddedCluster) -> str:
    _topic(cluster, "orders")
    builder = BatchBuilder()
    builder.append(None, b"value")
    damaged = bytearray(builder.build())
    damaged[-1] ^= 1
    request = pb.ProduceRequest(acks=-1, timeout_ms=5_000)
    request.partitions.add(topic="orders", partition=0, records=bytes(damaged))
    with grpc.insecure_channel(cluster.bootstrap) as channel:
        stub = broker_service_pb2_grpc.BrokerServiceStub(channel)
        (answer,) = next(iter(stub.Produce(iter([request]), timeout=30))).partitions
    return str(answer.error_message)


@_row(
    "no broker at the address",
    "no broker was reachable for ... s, tried 127.0.0.1:1 (Connection refused); check that the brokers are running...",
)
def _nobody_there(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "--timeout", "1", "topic", "list", "--bootstrap", "127.0.0.1:1")


@_row(
    "a broker that advertises a name that does not resolve",
    "broker 1 advertises the name 'nosuch.invalid:...', which does not resolve...set "
    "advertised.listeners...",
)
def _unresolvable(_: EmbeddedCluster) -> str:
    [port] = free_ports(1)
    listeners = (
        f"listeners=GRPC://127.0.0.1:{port},REPLICATION://127.0.0.1:0",
        f"advertised.listeners=GRPC://nosuch.invalid:{port},REPLICATION://127.0.0.1:0",
    )
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, settings=listeners)) as other:
        other.start()
        other.wait_ready()
        _cli_at(f"127.0.0.1:{port}", "topic", "create", "t", "--partitions", "1")

        async def produce() -> str:
            async with (
                Client(f"127.0.0.1:{port}") as client,
                client.producer(delivery_timeout_ms=3_000) as producer,
            ):
                try:
                    await producer.send_and_wait("t", b"v")
                except OdradekError as error:
                    return str(error)
            return ""

        return asyncio.run(produce())


# --- administration -----------------------------------------------------------------------------------


@_row(
    "a topic name with characters that are not allowed",
    "...'bad name': a topic's name may have only ASCII letters, digits, '.', '_' and '-'",
)
def _bad_name(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "topic", "create", "bad name")


@_row(
    "a topic config that does not exist",
    "...there is no topic config retention.hours; did you mean retention.ms?",
)
def _bad_config(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "topic", "create", "t1", "--config", "retention.hours=1")


@_row(
    "a topic config with an invalid value",
    "...retention.ms: 'abc' is not a whole number from -1",
)
def _bad_value(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "topic", "create", "t1", "--config", "retention.ms=abc")


@_row(
    "more replicas than brokers",
    "...replication factor 3 needs 3 brokers, but the number of registered brokers is 1",
)
def _too_many_replicas(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "topic", "create", "t1", "--replicas", "3")


@_row(
    "a topic that already exists",
    "...topic orders exists already; choose another name, or use the existing topic",
)
def _topic_exists(cluster: EmbeddedCluster) -> str:
    _topic(cluster, "orders")
    return _cli(cluster, "topic", "create", "orders")


@_row(
    "a group that does not exist",
    "group 'nobody': ...; check the name (`odradek group list`)...",
)
def _unknown_group(cluster: EmbeddedCluster) -> str:
    return _cli(cluster, "group", "describe", "nobody")


# --- processes ----------------------------------------------------------------------------------------


@_row(
    "a setting that does not exist",
    "...there is no setting log.segment.byte; did you mean log.segment.bytes?",
)
def _unknown_setting(cluster: EmbeddedCluster) -> str:
    return _broker(cluster, "log.segment.byte=3")


@_row(
    "a config of the whole cluster in a broker's settings",
    "num.partitions has no effect here: num.partitions is a config of the whole cluster:"
    " change it with `odradek cluster config --set num.partitions=...`...",
)
def _config_of_the_cluster(cluster: EmbeddedCluster) -> str:
    return _broker(cluster, "num.partitions=3")


@_row("a setting with an invalid value", "...node.id='x' is not valid...")
def _bad_setting(cluster: EmbeddedCluster) -> str:
    return _broker(cluster, "node.id=x")


@_row(
    "a port that is in use",
    "port ... on 127.0.0.1 is in use (listener GRPC): stop the process that uses it..., or "
    "set another port...",
)
def _port_in_use(cluster: EmbeddedCluster) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return _broker(cluster, f"listeners=GRPC://127.0.0.1:{port},REPLICATION://127.0.0.1:0")


@_row(
    "an address beyond loopback without TLS",
    "...is reachable from other machines, but there is no TLS: set "
    "ssl.certificate.location...or listen on 127.0.0.1, or start with --insecure...",
)
def _no_tls(cluster: EmbeddedCluster) -> str:
    return _broker(cluster, "listeners=GRPC://203.0.113.9:0,REPLICATION://127.0.0.1:0")


@_row(
    "a data directory of another cluster",
    "... belongs to the cluster ..., not to other: use the right data "
    "directory, or format a new one",
)
def _other_cluster(cluster: EmbeddedCluster) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy_of_data(cluster, Path(folder))
        return _broker(cluster, f"log.dirs={copy}", "cluster.id=other")


@_row(
    "a data directory of another broker",
    "... belongs to node 1, not to node 2: use the right data directory, or format a new one",
)
def _other_broker(cluster: EmbeddedCluster) -> str:
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy_of_data(cluster, Path(folder))
        return _broker(cluster, f"log.dirs={copy}", "node.id=2")


@_row(
    "a data directory that another process uses",
    "... is in use by the process ...: stop it, or use another data directory",
)
def _locked(cluster: EmbeddedCluster) -> str:
    return _broker(cluster, f"log.dirs={cluster.broker_data_dir(1)}")


@_row(
    "a broker whose cluster id differs from that of its controllers",
    "...broker 9 belongs to cluster other, this is cluster ...: correct the broker's cluster.id or "
    "controller.rpc.endpoints",
)
def _wrong_cluster(cluster: EmbeddedCluster) -> str:
    endpoints = f"controller.rpc.endpoints=1@{cluster.describe()['controllers']}"
    return _broker(cluster, "cluster.id=other", "node.id=9", endpoints)


@_row(
    "a controller's directory that is formatted again with another cluster id",
    "... belongs to cluster ..., not other: correct cluster.id or the path of the data directory",
)
def _formatted_again(cluster: EmbeddedCluster) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = ("storage", "format", "--data-dir", folder, "--node-id", "1")
        done = _run(cluster.bootstrap, *words, "--voters", "1@127.0.0.1:9095")
        assert done.returncode == 0, done.stderr
        return _cli(cluster, *words, "--voters", "1@127.0.0.1:9095", "--cluster-id", "other")


@_row(
    "a segment that was damaged on disk",
    "Log of a partition is damaged on disk; the broker copies lost records from other replicas, if any...is "
    "damaged at byte ...; ... bytes from there on are deleted",
)
def _corrupt_segment(_: EmbeddedCluster) -> str:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as other:
        other.start()
        other.wait_ready()
        topic = ("topic", "create", "t", "--partitions", "1", "--config", "segment.bytes=1048576")
        assert _run(other.bootstrap, *topic).returncode == 0
        lines = "".join(f"{n:0100d}\n" for n in range(30_000))
        assert _run(other.bootstrap, "produce", "t", stdin=lines).returncode == 0
        other.brokers[1].kill()
        segment = min((other.broker_data_dir(1) / "t-0").glob("*.log"))
        with segment.open("r+b") as file:
            file.seek(500_000)
            file.write(b"\xff" * 16)
        other.brokers[1].start()
        other.wait_ready()
        words = ("consume", "t", "--from-beginning", "--exit-at-end")
        result = _run(other.bootstrap, *words)
        return result.stderr + (other.data_dir / "broker-1.log").read_text()


# --- running commands and processes -------------------------------------------------------------------


def _cli(cluster: EmbeddedCluster, *words: str, stdin: str = "") -> str:
    return _cli_at(cluster.bootstrap, *words, stdin=stdin, fails=True)


def _cli_at(bootstrap: str, *words: str, stdin: str = "", fails: bool = False) -> str:
    done = _run(bootstrap, *words, stdin=stdin)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr


def _run(bootstrap: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "odradek.cli.main", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ODRADEK_BOOTSTRAP": bootstrap, "COLUMNS": "1000"},
        timeout=60,
    )


def _topic(cluster: EmbeddedCluster, name: str, *options: str) -> None:
    done = _run(cluster.bootstrap, "topic", "create", name, "--partitions", "1", *options)
    assert done.returncode == 0 or "exists already" in done.stderr, done.stderr


def _broker(cluster: EmbeddedCluster, *changes: str) -> str:
    """Return what a broker with these settings prints when it refuses to start."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "node.id": "1",
            "cluster.id": cluster.cluster_id,
            "log.dirs": folder,
            "controller.rpc.endpoints": "1@127.0.0.1:1",
            "listeners": "GRPC://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        }
        settings |= dict(change.split("=", 1) for change in changes)
        return _ended(
            "odradek_broker",
            [word for name, value in settings.items() for word in ("--set", f"{name}={value}")],
        )


def _ended(module: str, words: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    return done.stderr


def _copy_of_data(cluster: EmbeddedCluster, folder: Path) -> Path:
    copy = folder / "copy"
    shutil.copytree(cluster.broker_data_dir(1), copy)
    return copy
