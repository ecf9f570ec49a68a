"""A client that connects to the wrong port gets an error that names the listener there and the
right one; the log names them, too.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import odradek
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek.errors import WrongListener


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1, gateways=1)) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster


def log_of(cluster: EmbeddedCluster, name: str) -> str:
    return (Path(cluster.describe()["data_dir"]) / f"{name}.log").read_text()


def address(cluster: EmbeddedCluster, name: str) -> str:
    return str(cluster.describe()[name]).removeprefix("http://")


def connect(endpoint: str) -> WrongListener:
    async def work() -> None:
        async with odradek.Client(endpoint) as client:
            await client.connect(60)

    with pytest.raises(WrongListener) as refused:
        asyncio.run(work())
    return refused.value


def wait_for_log(cluster: EmbeddedCluster, name: str, words: str) -> None:
    deadline_s = time.monotonic() + 30
    while words not in log_of(cluster, name):
        assert time.monotonic() < deadline_s, log_of(cluster, name)
        time.sleep(0.05)


def test_the_sdk_at_the_kafka_listener_learns_the_grpc_address(cluster: EmbeddedCluster) -> None:
    error = connect(address(cluster, "kafka"))
    assert "this is the listener KAFKA of broker 1, for Kafka clients" in str(error)
    assert f"the broker's gRPC address, {address(cluster, 'grpc')}" in str(error)
    assert str(error).count("gRPC address") == 1
    wait_for_log(cluster, "broker-1", "the client speaks gRPC: this is the listener KAFKA")


CONNECTING = """
import sys
import odradek.sync
from odradek.errors import WrongListener
try:
    odradek.sync.Client(sys.argv[1]).connect(60)
except WrongListener:
    print("refused")
"""


IN_SPARK_WORKERS = """
import sys
import pyspark.worker
from pyspark.sql.types import StringType, StructField, StructType
from odradek.errors import WrongListener
from pyspark_odradek import DefaultSource
schema = StructType([StructField("value", StringType())])
options = {"kafka.bootstrap.servers": sys.argv[1], "topic": "t"}
try:
    DefaultSource(options).streamWriter(schema, False)
except WrongListener:
    print("refused")
"""
"""What Spark's worker processes do: they import Spark's worker first, and then make the writer of a sink."""


@pytest.mark.parametrize("program", [CONNECTING, IN_SPARK_WORKERS], ids=["sdk", "spark"])
@pytest.mark.parametrize(("verbosity", "is_shown"), [(None, False), ("INFO", True)])
def test_grpc_writes_its_own_lines_only_if_the_user_wants_them(
    cluster: EmbeddedCluster, program: str, verbosity: str | None, is_shown: bool
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
    if verbosity is not None:
        environment["GRPC_VERBOSITY"] = verbosity
    done = subprocess.run(
        [sys.executable, "-c", program, address(cluster, "kafka")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == "refused"
    assert ("Got goaway" in done.stderr) == is_shown, done.stderr


def test_the_sdk_at_a_gateway_is_told_so(cluster: EmbeddedCluster) -> None:
    error = connect(address(cluster, "gateway"))
    assert "this is the listener HTTP of a gateway" in str(error)
    assert str(error).endswith("(listener GRPC, port 9090 by default)")
    wait_for_log(cluster, "gateway-1", "a gRPC client: this is the listener HTTP")


def test_the_sdk_at_another_http_server_is_told_so(cluster: EmbeddedCluster) -> None:
    error = connect(cluster.describe()["metrics"]["broker-1"])
    assert "this address belongs to an HTTP/1 server" in str(error)


@pytest.mark.parametrize(
    ("listener", "name"),
    [
        ("replication", "REPLICATION of broker 1, for other brokers"),
        ("controllers", "CONTROLLER of controller 1, for brokers"),
        ("raft", "RAFT of controller 1, for other controllers"),
    ],
)
def test_the_sdk_at_an_internal_listener_learns_the_grpc_address(
    cluster: EmbeddedCluster, listener: str, name: str
) -> None:
    endpoint = address(cluster, listener)
    told = (
        f"this is the listener {name}: the SDK and `odradek` connect to the gRPC address of a broker,"
        f" {address(cluster, 'grpc')}"
    )
    assert str(connect(endpoint)) == f"broker at {endpoint} is unreachable: {told}"

    async def produce() -> None:
        async with odradek.Producer(endpoint) as producer:
            await producer.send("t", b"x")

    with pytest.raises(WrongListener) as refused:
        asyncio.run(produce())
    assert told in str(refused.value)


def test_one_wrong_address_of_two_does_no_harm(cluster: EmbeddedCluster) -> None:
    async def work() -> None:
        endpoints = f"{address(cluster, 'kafka')},{address(cluster, 'grpc')}"
        async with odradek.Client(endpoints) as client:
            await client.connect(60)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("listener", "process", "name", "advice"),
    [
        ("kafka", "broker-1", "KAFKA", b"HTTP is served by a gateway"),
        ("raft", "controller-1", "RAFT", b"this is the listener RAFT of controller 1"),
    ],
)
def test_http_at_another_listener_is_answered_in_http(
    cluster: EmbeddedCluster, listener: str, process: str, name: str, advice: bytes
) -> None:
    connection = http.client.HTTPConnection(address(cluster, listener), timeout=30)
    connection.request("GET", "/topics")
    response = connection.getresponse()
    assert response.status == 400
    assert advice in response.read()
    connection.close()
    wait_for_log(cluster, process, f"the client speaks HTTP: this is the listener {name}")


def test_a_kafka_client_at_a_gateway_is_named_in_its_log(cluster: EmbeddedCluster) -> None:
    host, _, port = address(cluster, "gateway").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert client.recv(1) == b""
    wait_for_log(cluster, "gateway-1", "a Kafka client: this is the listener HTTP")


def test_tls_at_the_plaintext_kafka_listener_is_named_in_the_log(cluster: EmbeddedCluster) -> None:
    host, _, port = address(cluster, "kafka").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"\x16\x03\x01\x02\x00" + b"\x01" * 64)
        assert client.recv(1) == b""
    wait_for_log(cluster, "broker-1", "without TLS: set security.protocol to PLAINTEXT")
