"""The sink delivers each row once to readers of committed records, whichever process is killed at
any time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from odradek import Client
from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek.errors import OdradekError
from pyspark_odradek import write_step
from pyspark_odradek.delivery import OutputRecord, Stage, TaskIdentity
from pyspark_odradek.sink_options import parse_sink_options
from pyspark_odradek.staged_delivery import ExactlyOnce
from tests.e2e.spark import relay_driver, stop_points
from tests.e2e.spark.driver_process import DriverProcess
from tests.e2e.spark.exactly_once_rounds import RECORDS_A_ROUND, kill_if_left, kills, play
from tests.e2e.spark.short_jvm import AS_ARGUMENTS
from tests.e2e.spark.topics import Output, Topics

LEASE_S = 60  # the default of transaction.staged.lease.ms


@pytest.mark.timeout(900)
def test_a_batch_is_written_once_although_driver_and_executor_are_killed(
    spark_works: None, tmp_path: Path
) -> None:
    plan = [("driver", "completed"), ("executor", "prepared"), ("driver", "before completion")]
    outcome = play(tmp_path, plan, brokers=1, master="local-cluster[1,2,1024]")
    assert outcome.is_exact, outcome
    assert outcome.sent == len(plan) * RECORDS_A_ROUND
    assert outcome.written_again, "no row was written twice, so the kills tested nothing"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_twenty_kills_of_the_driver_and_twenty_of_executors(
    spark_works: None, tmp_path: Path
) -> None:
    rounds = int(os.environ.get("ODRADEK_FAULT_ROUNDS", "20"))
    plan = kills(rounds, rounds)
    outcome = play(tmp_path, plan, brokers=3, master="local-cluster[2,1,1024]")
    assert outcome.is_exact, outcome
    assert outcome.sent == len(plan) * RECORDS_A_ROUND
    assert outcome.written_again


@pytest.mark.long
def test_the_rows_of_a_batch_write_whose_driver_died_do_not_hold_readers_up(
    spark_works: None, tmp_path: Path
) -> None:
    """The write of a killed program is never run again, so only the cluster can end its prepared tasks."""
    lease_ms, point, stops = "3000", "before completion", tmp_path / "stops"
    plan = ClusterPlan(
        brokers=1, controllers=1, settings=(f"transaction.staged.lease.ms={lease_ms}",)
    )
    with EmbeddedCluster(plan) as running:
        running.start()
        running.wait_ready()
        topics = Topics(running.bootstrap)
        source, target = topics.new(partitions=2), topics.new(partitions=1)
        topics.send(source, [Output(b"%d" % number) for number in range(100)])
        environment = stop_points.install(stops)
        stop_points.arm(stops, point)
        arguments = (
            *("--batch", "--bootstrap", running.bootstrap, "--from", source, "--to", target),
            *("--option", f"preparedTimeoutMs={lease_ms}", "--master", "local[2]"),
            *AS_ARGUMENTS,
        )
        with DriverProcess(
            tmp_path / "log", *arguments, module=relay_driver.MODULE, environment=environment
        ) as driver:
            driver.wait_until(lambda: stop_points.reached(stops, point) is not None)
            worker = stop_points.reached(stops, point)
            assert worker is not None
            driver.kill()
            kill_if_left(worker)
        assert topics.send(target, [Output(b"later")]) == 1
        assert values(topics, target) == [b"later"]
        assert len(topics.read(target, isolation_level="read_uncommitted")) == 101


def rows(spark: SparkSession, *values: str) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "value string")


def values(topics: Topics, name: str) -> list[bytes | None]:
    return sorted(record.value or b"" for record in topics.read(name))


def test_a_batch_write_counts_all_or_not_at_all(
    spark: SparkSession, cluster: EmbeddedCluster, topics: Topics
) -> None:
    """One task of three fails after the others have written everything."""
    name = topics.new(partitions=2)
    frame = spark.range(300).repartition(3)
    good = frame.selectExpr("cast(id as string) value")
    bad = frame.selectExpr("cast(id as string) value", "if(id = 299, -1, 0) partition")

    def write(data: DataFrame) -> None:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name}
        data.write.format("odradek").mode("append").options(**options).save()

    with pytest.raises(Exception, match="Invalid partition: -1"):
        write(bad)
    assert values(topics, name) == []
    write(good)
    assert len(values(topics, name)) == 300


@pytest.mark.parametrize("step", [None, 3])
def test_a_failed_write_aborts_tasks_that_never_reported(
    cluster: EmbeddedCluster, topics: Topics, step: int | None
) -> None:
    """Spark stops the other tasks of a failed job, some of them after they have written everything."""
    name = topics.new(partitions=1)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name}
    schema = StructType([StructField("value", BinaryType())])
    delivery = ExactlyOnce(parse_sink_options(options, schema), is_final=step is None)
    batch_id = step or 0

    def stage(task: int) -> Stage:
        opened = delivery.open(
            TaskIdentity(query_id=name, batch_id=batch_id, partition_id=task, attempt=0)
        )
        opened.send([OutputRecord(name, None, b"lost", None, None)])
        return opened

    assert stage(0).prepare().record_count == 1
    running = stage(1)
    delivery.abort(batch_id, (), query_id=name)
    with pytest.raises(OdradekError):
        running.prepare()
    began_s = time.monotonic()
    assert values(topics, name) == []
    assert time.monotonic() - began_s < LEASE_S, "readers waited until the tasks' lease ended"
    if step is None:
        assert stage(2).prepare().task is None, "the task writes for an aborted batch"


def test_a_step_of_foreach_batch_is_written_once(
    spark: SparkSession, cluster: EmbeddedCluster, topics: Topics
) -> None:
    name = topics.new(partitions=2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name}
    for _ in range(2):
        write_step(rows(spark, "a", "b"), query=name, step=0, **options)
    write_step(rows(spark, "c"), query=name, step=1, **options)
    with pytest.raises(Exception, match=r"step 0 of .* is older than step 1"):
        write_step(rows(spark, "d"), query=name, step=0, **options)
    assert values(topics, name) == [b"a", b"b", b"c"]


def test_a_batch_of_a_query_is_written_once_although_it_fails_behind_the_write(
    spark: SparkSession, cluster: EmbeddedCluster, topics: Topics, tmp_path: Path
) -> None:
    """`write_step` uses the id of the query that calls it, which is that of the checkpoint."""
    source, target = topics.new(partitions=2), topics.new(partitions=2)
    topics.send(source, [Output(b"%d" % number) for number in range(100)])
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    reader = spark.readStream.format("odradek").schema("value binary").options(**options)
    stream = reader.options(subscribe=source, startingOffsets="earliest").load().writeStream
    failures = iter([True, False])

    def write(frame: DataFrame, number: int) -> None:
        write_step(frame, step=number, topic=target, **options)
        if next(failures):
            raise RuntimeError("after the write")

    stream = stream.option("checkpointLocation", str(tmp_path)).foreachBatch(write)
    query = stream.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="after the write"):
        query.awaitTermination(120)
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert len(values(topics, target)) == 100
    steps = topics.steps(str(query.id))
    assert (steps.last_step, steps.open_tasks) == (0, ())


def test_a_step_outside_of_a_query_needs_a_name(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "t"}
    with pytest.raises(ValueError, match="pass query=NAME"):
        write_step(rows(spark, "a"), step=0, **options)


def test_at_least_once_is_an_option(
    spark: SparkSession, cluster: EmbeddedCluster, topics: Topics
) -> None:
    name = topics.new(partitions=2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name}
    writer = rows(spark, "a", "b").write.format("odradek").mode("append").options(**options)
    writer.option("delivery", "at-least-once").save()
    assert sum(topics.ends(name).values()) == 2, "a marker was written"


async def test_a_cluster_without_transactions_is_written_at_least_once_and_says_so(
    spark: SparkSession,
) -> None:
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as old:
        old.start()
        old.wait_ready()
        async with Client(old.bootstrap) as client:
            await client.admin.update_feature("transaction.version", 0, allow_downgrade=True)
            await client.admin.create_topic("t", partitions=1)
        options = {"kafka.bootstrap.servers": old.bootstrap, "topic": "t"}
        writer = rows(spark, "a").write.format("odradek").mode("append").options(**options)
        writer.save()
        async with (
            Client(old.bootstrap) as client,
            client.consumer("t", auto_offset_reset="earliest") as reader,
        ):
            assert [r.value for r in await reader.getmany(timeout_ms=10_000)] == [b"a"]
        with pytest.raises(Exception, match=r"odradek feature set transaction\.version 2"):
            writer.option("delivery", "exactly-once").save()


def test_a_stream_writes_each_record_once(
    spark: SparkSession, cluster: EmbeddedCluster, topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.new(partitions=2), topics.new(partitions=2)
    topics.send(source, [Output(b"%d" % number) for number in range(500)])
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    reader = spark.readStream.format("odradek").schema("value binary").options(**options)
    stream = reader.options(subscribe=source, startingOffsets="earliest").load().writeStream
    stream = stream.format("odradek").options(**options, topic=target)
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert len(values(topics, target)) == 500
