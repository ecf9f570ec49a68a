"""The Spark sink: the records that it writes, the rows that it refuses, and its error messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from odradek.embedded import EmbeddedCluster
from odradek_protocol.records import partition_for_key
from tests.e2e.spark.topics import Topics

COLUMNS = (
    "key string, value binary, topic string, partition int,"
    " headers array<struct<key: string, value: binary>>"
)


@pytest.fixture
def write(cluster: EmbeddedCluster) -> Callable[..., None]:
    def save(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("odradek").mode("append")
        writer.option("kafka.bootstrap.servers", cluster.bootstrap).options(**options).save()

    return save


def test_all_columns_arrive_and_keys_choose_partitions_as_kafkas_do(
    spark: SparkSession, write: Callable[..., None], topics: Topics
) -> None:
    one, other = topics.new(partitions=3), topics.new(partitions=3)
    rows = [
        ("k1", b"v1", one, None, [("h", b"1"), ("n", None)]),
        ("k2", None, one, None, []),
        (None, b"v3", other, 2, None),
    ]
    write(spark.createDataFrame(rows, COLUMNS))
    found = {(r.key, r.value, r.partition, tuple(r.headers)) for r in topics.read(one)}
    assert found == {
        (b"k1", b"v1", partition_for_key(b"k1", 3), (("h", b"1"), ("n", None))),
        (b"k2", None, partition_for_key(b"k2", 3), ()),
    }
    assert [(r.key, r.value, r.partition) for r in topics.read(other)] == [(None, b"v3", 2)]


def test_the_topic_option_goes_before_the_column(
    spark: SparkSession, write: Callable[..., None], topics: Topics
) -> None:
    name = topics.new(partitions=1)
    write(spark.createDataFrame([("elsewhere", "v")], "topic string, value string"), topic=name)
    assert topics.pairs(name) == [(None, b"v")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("k", b"v", None, None, None), "contains a null topic"),
        (("k", b"v", "t", 99, None), "no partition 99"),
        (("k", b"v", "t", -1, None), "Invalid partition: -1. Partition number should always be"),
        (("k", b"v", "no such topic!", None, None), "no such topic!"),
        (("k", b"v", "t", None, [(None, b"x")]), "header's key cannot be null"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_write_and_says_why(
    spark: SparkSession,
    write: Callable[..., None],
    topics: Topics,
    row: tuple[object, ...],
    message: str,
) -> None:
    name = topics.new(partitions=1)
    named = tuple(name if field == "t" else field for field in row)
    with pytest.raises(Exception, match=message):
        write(spark.createDataFrame([named], COLUMNS))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("value string", {}, "topic option required when no 'topic' attribute is present"),
        ("key string", {"topic": "t"}, "Required attribute 'value' not found"),
        ("value int", {"topic": "t"}, "value must be a\\(n\\) string or binary"),
        (
            "value string",
            {"topic": "t", "kafka.key.serializer": "x"},
            "'key.serializer' is not supported",
        ),
        ("value string", {"topic": "t", "kafka.acks": "2"}, "acks is '2'"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_anything_is_written(
    spark: SparkSession,
    write: Callable[..., None],
    schema: str,
    options: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(Exception, match=message):
        write(spark.createDataFrame([], schema), **options)


def test_overwriting_is_refused(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    writer = spark.createDataFrame([("v",)], "value string").write.format("odradek")
    with pytest.raises(Exception, match="Save mode Overwrite is not allowed"):
        writer.mode("overwrite").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap, "topic": "t"}
        ).save()


@pytest.mark.parametrize(
    ("has_wrong_address", "message"),
    [(True, "this is the listener KAFKA of broker 1"), (False, "; did you mean '")],
)
def test_a_stream_to_a_wrong_address_or_topic_ends_before_its_first_tasks(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topics: Topics,
    tmp_path: Path,
    has_wrong_address: bool,
    message: str,
) -> None:
    name = topics.new(partitions=1)
    options = {
        "kafka.bootstrap.servers": cluster.kafka_bootstrap
        if has_wrong_address
        else cluster.bootstrap,
        "topic": name if has_wrong_address else f"{name}x",
        "checkpointLocation": str(tmp_path),
    }
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    query = rows.writeStream.format("odradek").options(**options).start()
    try:
        with pytest.raises(Exception, match=message) as failed:
            query.awaitTermination(120)
        assert "Failed to initialize Python data source writer" in str(failed.value)
    finally:
        query.stop()
