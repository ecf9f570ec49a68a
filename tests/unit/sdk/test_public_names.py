"""The public names of the SDK, and the cost of importing them."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import subprocess
import sys

import pytest

import odradek
from odradek.admin import access, descriptions
from odradek.consumer.consumer import ConsumerArguments
from odradek.consumer.options import ConsumerOptions
from odradek.producer.options import ProducerOptions
from odradek.producer.producer import ProducerArguments
from odradek.testing import MemoryCluster

MODULES = ["errors", "serializers", "sync", "testing"]
NAMES = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "BrokerDescription",
    "Client",
    "ClusterDescription",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigValue",
    "Consumer",
    "ConsumerOptions",
    "ConsumerRecord",
    "DeliveryFuture",
    "FeatureDescription",
    "GroupDescription",
    "GroupIdentity",
    "GroupListing",
    "GroupMember",
    "GroupOptions",
    "LinkState",
    "ListenerDescription",
    "LogDirDescription",
    "NewTopic",
    "OdradekError",
    "OffsetAndTimestamp",
    "PartitionOutcome",
    "PatternType",
    "Producer",
    "ProducerOptions",
    "QuorumDescription",
    "Quota",
    "Reassignment",
    "RecordMetadata",
    "ResourceType",
    "SaslCredentials",
    "ScramMechanism",
    "ScramUser",
    "TlsOptions",
    "TopicDescription",
    "TopicOutcome",
    "TopicPartition",
    "Transaction",
    "Voter",
]


def test_the_public_names_are_these() -> None:
    assert sorted(odradek.__all__) == sorted([*NAMES, *MODULES])
    shown = [name for name in dir(odradek) if not name.startswith("__")]
    assert sorted(shown) == sorted([*NAMES, *MODULES])


def test_the_version_is_the_distributions() -> None:
    assert odradek.__version__ == importlib.metadata.version("odradek")
    assert "__version__" in dir(odradek)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_attributes_of_the_package(name: str) -> None:
    script = f"import odradek; print(odradek.{name}.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"odradek.{name}"


def test_what_signatures_of_the_admin_name_is_public() -> None:
    defined = {
        name
        for module in (access, descriptions)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    named = {
        word
        for method_name, method in inspect.getmembers(odradek.Admin, inspect.isfunction)
        if not method_name.startswith("_")
        for annotation in method.__annotations__.values()
        for word in re.findall(r"\w+", str(annotation))
    }
    assert len(named & defined) > 10
    assert sorted((named & defined) - set(NAMES)) == []


async def test_reprs_say_what_is_going_on() -> None:
    cluster = MemoryCluster()
    cluster.create_topic("t", partitions=6)
    async with cluster.client() as client:
        await client.connect()
        async with client.producer() as producer:
            delivery = await producer.send("t", b"x", partition=0)
            assert repr(delivery) == "<DeliveryFuture pending>"
            await delivery
            assert "topic='t', partition=0, offset=0" in repr(delivery)
            assert repr(producer) == "<odradek.Producer memory-1:9090 connected, 0 bytes buffered>"
        assert repr(producer).endswith("closed>")
        async with client.consumer("t") as consumer:
            assert repr(consumer) == (
                "<odradek.Consumer memory-1:9090 connected, reads t-0, t-1, t-2, t-3, ... (6 partitions)>"
            )
        assert repr(client) == "<odradek.Client memory-1:9090 connected>"
        assert ", group 'g', reads nothing yet>" in repr(client.consumer("t", group="g"))


def test_reprs_of_the_synchronous_names() -> None:
    cluster = MemoryCluster()
    cluster.create_topic("t")
    with odradek.sync.Client(cluster.bootstrap, transport=cluster.transport()) as client:
        client.connect()
        assert repr(client) == "<odradek.sync.Client memory-1:9090 connected>"
        with client.producer() as producer:
            delivery = producer.send("t", b"x")
            delivery.result()
            assert repr(delivery).startswith("<Delivery RecordMetadata(topic='t'")
            assert repr(producer).startswith("<odradek.sync.Producer memory-1:9090 connected")


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(odradek, name).__doc__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        odradek.Cleint  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "options"),
    [(ProducerArguments, ProducerOptions), (ConsumerArguments, ConsumerOptions)],
)
def test_typed_arguments_are_the_fields_of_the_options(arguments: type, options: type) -> None:
    fields = options.__dataclass_fields__  # type: ignore[attr-defined]
    assert list(arguments.__annotations__) == list(fields)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("odradek", "grpc google.protobuf pyarrow fastavro asyncio"),
        ("odradek.errors", "grpc google.protobuf pyarrow asyncio"),
        ("odradek.client", "grpc pyarrow fastavro"),
        ("odradek.sync", "grpc pyarrow fastavro"),
        ("odradek.serializers", "grpc pyarrow fastavro google.protobuf"),
    ],
)
def test_importing_is_light(module: str, forbidden: str) -> None:
    script = f"import {module}, sys; print([m for m in {forbidden.split()!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
