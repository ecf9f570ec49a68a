"""Spark reads and writes on a cluster that requires TLS, a certificate or a login, and checks access control
entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from odradek.admin.access import Acl, AclOperation, PatternType, ResourceType
from odradek.embedded import ClusterPlan
from tests.e2e.secure_cluster import SecureCluster

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
TOPIC = "secrets"
PREFIX = "spark-"


@pytest.fixture(scope="module")
def secured(spark_works: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """Yield a cluster of one broker with a topic that user alice may read and write; user bob has
    no rights.
    """
    plan = ClusterPlan(brokers=1, controllers=1)
    with SecureCluster(tmp_path_factory.mktemp("secured"), plan) as running:
        running.start()
        running.wait_ready()
        asyncio.run(_people(running))
        yield running


async def _people(cluster: SecureCluster) -> None:
    async with cluster.admin() as client:
        await client.admin.create_topic(TOPIC, partitions=2)
        for name in ("alice", "bob"):
            await client.admin.set_scram_password(name, f'{name}\'s "word"')
        await client.admin.create_acls(
            Acl(
                resource_type=ResourceType.TOPIC,
                resource_name=TOPIC,
                principal="User:alice",
                operation=operation,
            )
            for operation in (AclOperation.READ, AclOperation.WRITE)
        )
        await client.admin.create_acls(
            [
                Acl(
                    resource_type=ResourceType.TRANSACTIONAL_ID,
                    resource_name=PREFIX,
                    pattern_type=PatternType.PREFIXED,
                    principal="User:alice",
                    operation=AclOperation.WRITE,
                )
            ]
        )


def by_certificate(cluster: SecureCluster, name: str) -> dict[str, str]:
    certificate, key = cluster.certificate(name)
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": str(cluster.ca),
        "kafka.ssl.certificate.location": str(certificate),
        "kafka.ssl.key.location": str(key),
    }


def by_login(cluster: SecureCluster, name: str, password: str) -> dict[str, str]:
    ports = [broker.ready_line["ports"]["GRPC_USERS"] for broker in cluster.brokers.values()]
    return {
        "kafka.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f"{SCRAM} username='{name}' password=\"{password}\";",
        "kafka.ssl.truststore.certificates": Path(cluster.ca).read_text(),
    }


def write(spark: SparkSession, options: dict[str, str], *values: str) -> None:
    frame = spark.createDataFrame([(value,) for value in values], "value string")
    options = {"topic": TOPIC, "transactionalIdPrefix": PREFIX} | options
    frame.write.format("odradek").mode("append").options(**options).save()


def read(spark: SparkSession, options: dict[str, str]) -> list[str]:
    frame = spark.read.format("odradek").schema("value binary")
    rows = frame.options(subscribe=TOPIC, **options).load().collect()
    return sorted(bytes(row.value).decode() for row in rows)


def test_a_certificate_and_a_login_open_the_topic_to_those_who_may(
    spark: SparkSession, secured: SecureCluster
) -> None:
    admin = by_certificate(secured, "admin")
    alice = by_login(secured, "alice", 'alice\'s \\"word\\"')
    write(spark, admin, "by certificate")
    write(spark, alice, "by login")
    assert read(spark, admin) == read(spark, alice) == ["by certificate", "by login"]


def test_plans_show_no_key_and_no_password(spark: SparkSession) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": f'{SCRAM} username="alice" password="hidden-1";',
        "kafka.sasl.password": "hidden-2",
        "kafka.ssl.keystore.certificate.chain": "a chain",
        "kafka.ssl.keystore.key": "hidden-3",
        "kafka.ssl.key.pem": "hidden-4",
    }
    stream = spark.readStream.format("odradek").options(subscribe="shown", **options).load()
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        stream.explain("extended")
    assert "subscribe=shown" in plan.getvalue(), "the plan shows options"
    assert "hidden" not in plan.getvalue()


def test_a_wrong_password_no_right_and_no_trust_end_in_an_error_that_says_so(
    spark: SparkSession, secured: SecureCluster
) -> None:
    with pytest.raises(Exception, match="authentication failed"):
        read(spark, by_login(secured, "alice", "wrong"))
    bob = by_login(secured, "bob", 'bob\'s \\"word\\"')
    with pytest.raises(Exception, match="User:bob needs DESCRIBE on TOPIC"):
        read(spark, bob)
    with pytest.raises(Exception, match=r"User:bob needs [A-Z]+ on TOPIC"):
        write(spark, bob, "by nobody")
    with pytest.raises(Exception, match=r"User:bob needs [A-Z]+ on TOPIC"):
        write(spark, bob | {"delivery": "at-least-once"}, "by nobody")
    # A task opens its transactional id before it knows a topic of the column.
    rows = spark.createDataFrame([(TOPIC, "by nobody")], "topic string, value string")
    writer = rows.write.format("odradek").mode("append").options(**bob)
    with pytest.raises(Exception, match=r"User:bob needs WRITE on TRANSACTIONAL_ID spark-"):
        writer.option("transactionalIdPrefix", PREFIX).save()
    plain = {"kafka.bootstrap.servers": secured.bootstrap, "kafkaConsumer.pollTimeoutMs": "3000"}
    with pytest.raises(Exception, match="no broker was reachable"):
        read(spark, plain)
