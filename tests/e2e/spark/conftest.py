"""Fixtures: one cluster, one JVM and one topic with all flights for every test in this folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odradek.embedded import ClusterPlan, EmbeddedCluster
from odradek_demo.flights import read_flights
from tests.e2e.spark.flight_facts import Flight, scheduled
from tests.e2e.spark.ftp_site import serve_ftp
from tests.e2e.spark.pipeline_cases import Scene
from tests.e2e.spark.short_jvm import SHORT_JVM
from tests.e2e.spark.topics import Output, Topics
from tests.tools import need

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
SAMPLE_STEP = 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as Spark tests, with a long time-out, because a first Spark job is slow
    on a busy machine.
    """
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker("spark")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark_works() -> None:
    """Skip the test where Spark cannot run."""
    need("Java 17 or 21")


@pytest.fixture(scope="session")
def cluster(spark_works: None) -> Iterator[EmbeddedCluster]:
    """Yield a cluster of one broker and one controller."""
    with EmbeddedCluster(ClusterPlan(brokers=1, controllers=1)) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture(scope="session")
def topics(cluster: EmbeddedCluster) -> Topics:
    return Topics(cluster.bootstrap)


@pytest.fixture(scope="session")
def spark(spark_works: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a Spark session with two threads, few shuffle partitions, and the state store that
    transformWithState needs.
    """
    from pyspark_odradek.spark_session import session

    scratch = tmp_path_factory.mktemp("spark")
    running = session(
        "odradek tests",
        spark__master="local[2]",
        spark__ui__enabled="false",
        spark__driver__memory="1g",
        spark__driver__extraJavaOptions=SHORT_JVM,
        spark__sql__shuffle__partitions="2",
        spark__local__dir=str(scratch),
        spark__sql__warehouse__dir=str(scratch / "warehouse"),
        spark__sql__streaming__stateStore__providerClass=(
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    )
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def raw_flights() -> list[bytes]:
    """Return all 336,776 flights as the JSON that is sent."""
    return [flight.value for flight in read_flights()]


@pytest.fixture(scope="session")
def flights(raw_flights: list[bytes]) -> list[Flight]:
    """Return all flights, parsed."""
    return [json.loads(value) for value in raw_flights]


@pytest.fixture(scope="session")
def sample(raw_flights: list[bytes]) -> list[Flight]:
    """Return every SAMPLE_STEP-th flight, over the whole year."""
    return [json.loads(value) for value in raw_flights[::SAMPLE_STEP]]


@pytest.fixture(scope="session")
def flights_topic(topics: Topics, flights: list[Flight]) -> str:
    """Return the name of a topic with all flights."""
    return _flights_in("flights", topics, flights)


@pytest.fixture(scope="session")
def sample_topic(topics: Topics, sample: list[Flight]) -> str:
    """Return the name of a topic with the sample."""
    return _flights_in("flights-sample", topics, sample)


def _flights_in(name: str, topics: Topics, flights: list[Flight]) -> str:
    """Create a topic with these flights, keyed by tail number; timestamps are the scheduled
    departures.
    """
    topics.create(name, partitions=PARTITIONS, retention_ms="-1")
    sent = topics.send(
        name,
        (
            Output(
                json.dumps(flight, separators=(",", ":")).encode(),
                key=None if flight["tailnum"] is None else flight["tailnum"].encode(),
                timestamp_ms=int(scheduled(flight).timestamp() * 1000),
            )
            for flight in flights
        ),
    )
    assert sent == len(flights)
    return name


@pytest.fixture(params=["sample", pytest.param("all", marks=pytest.mark.long)])
def filled(request: pytest.FixtureRequest) -> tuple[str, list[Flight]]:
    """Return a topic with flights, and those flights: the sample, and in tests marked `long` also
    all flights.
    """
    names = {"sample": ("sample_topic", "sample"), "all": ("flights_topic", "flights")}
    topic, flights = (request.getfixturevalue(name) for name in names[request.param])
    return topic, flights


@pytest.fixture
def scene(request: pytest.FixtureRequest, topics: Topics, tmp_path: Path) -> Iterator[Scene]:
    """Yield the surroundings in which a pipeline runs: on the sample, or with the parameter "all"
    on all flights.
    """
    is_whole = getattr(request, "param", "sample") == "all"
    flights, source = ("flights", "flights_topic") if is_whole else ("sample", "sample_topic")
    served = tmp_path / "ftp"
    served.mkdir()
    with serve_ftp(served) as url:
        yield Scene(
            topics=topics,
            flights=request.getfixturevalue(flights),
            source=request.getfixturevalue(source),
            directory=tmp_path,
            ftp=url,
            ftp_directory=served,
        )


@pytest.fixture
def read_batch(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[..., DataFrame]:
    """Return a function that reads a batch with these options, with all columns or those of
    `schema`.
    """

    def read(*, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("odradek").option("kafka.bootstrap.servers", cluster.bootstrap)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return read
