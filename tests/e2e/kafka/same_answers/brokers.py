"""The two brokers that get the requests: Apache Kafka 4.4 and Odradek, each a single node, with equivalent settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_protocol.kafka.api_keys import ApiKey
from tests.bench.comparisons.kafka_cluster import KafkaCluster
from tests.e2e.kafka.same_answers.wire import Address, Connection

READY_S_MAX: Final = 90.0
_BOTH: Final = (
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=5",
    "transaction.state.log.num.partitions=5",
)
_KAFKA: Final = (
    *_BOTH,
    # Kafka computes assignments of consumer groups at intervals, and Odradek at once.
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.assignor.offload.enable=false",
)
_KAFKA_GUARDED: Final = (
    *_KAFKA,
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)
_ODRADEK_GUARDED: Final = (
    *_BOTH,
    "authorizer.class.name=acl",
    "super.users=User:ANONYMOUS",
    "listeners=KAFKA://127.0.0.1:0,KAFKA_SASL://127.0.0.1:0,GRPC://127.0.0.1:0,"
    "REPLICATION://127.0.0.1:0",
    "listener.security.protocol.map=KAFKA:PLAINTEXT,KAFKA_SASL:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=SCRAM-SHA-256",
)


class Broker(NamedTuple):
    """The addresses of one broker: a listener without logins, and one where clients must log in."""

    address: Address
    login_address: Address


@contextmanager
def kafka(jars: Path, directory: Path, *, guarded: bool) -> Iterator[Broker]:
    """Run Apache Kafka, with its StandardAuthorizer if `guarded`."""
    settings = _KAFKA_GUARDED if guarded else _KAFKA
    with KafkaCluster(jars, directory, nodes=1, settings=settings, with_logins=True) as cluster:
        cluster.start()
        host, port = cluster.bootstrap.split(":")
        yield _ready(Broker((host, int(port)), (host, cluster.login_ports[0])))


@contextmanager
def odradek(*, guarded: bool, cluster: EmbeddedCluster | None = None) -> Iterator[Broker]:
    """Run Odradek, with its authorizer if `guarded`. `cluster` may name an existing cluster to use."""
    settings = _ODRADEK_GUARDED if guarded else _BOTH
    plan = ClusterPlan(brokers=1, controllers=1, settings=settings)
    with cluster or EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        ports = running.brokers[1].ready_line["ports"]
        host = "127.0.0.1"
        yield _ready(Broker((host, ports["KAFKA"]), (host, ports.get("KAFKA_SASL", 0))))


def guarded_plan() -> ClusterPlan:
    return ClusterPlan(brokers=1, controllers=1, settings=_ODRADEK_GUARDED)


def _ready(broker: Broker) -> Broker:
    """Wait until the broker serves, and coordinates groups and transactions."""
    deadline_s = time.monotonic() + READY_S_MAX
    for kind in (0, 1):
        while not _coordinates(broker.address, kind):
            assert time.monotonic() < deadline_s, f"{broker} does not coordinate"
            time.sleep(0.2)
    return broker


def _coordinates(address: Address, kind: int) -> bool:
    connection = Connection(address)
    try:
        fields = {"key_type": kind, "coordinator_keys": ["a"]}
        response = connection.ask(ApiKey.FIND_COORDINATOR, 4, fields)
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()
    return isinstance(response, dict) and response["coordinators"][0]["error_code"] == 0
