"""What programs may rely on: names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import odradek
from odradek.consumer.consumer import ConsumerArguments
from odradek.consumer.options import ConsumerOptions
from odradek.producer.options import ProducerOptions
from odradek.producer.producer import ProducerArguments

NAMES = [
    "Admin",
    "Client",
    "ClusterDescription",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigValue",
    "Consumer",
    "ConsumerOptions",
    "ConsumerRecord",
    "DeliveryFuture",
    "GroupOptions",
    "LinkState",
    "NewTopic",
    "OdradekError",
    "OffsetAndTimestamp",
    "PartitionOutcome",
    "Producer",
    "ProducerOptions",
    "RecordMetadata",
    "SaslCredentials",
    "TlsOptions",
    "TopicDescription",
    "TopicOutcome",
    "TopicPartition",
]


def test_the_public_names_are_these() -> None:
    assert sorted(odradek.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(odradek))


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
