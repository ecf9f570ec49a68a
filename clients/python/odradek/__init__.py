"""The Python SDK of Odradek: a producer, a consumer and an admin, over gRPC.

    async with odradek.Client("localhost:9090") as client:
        async with client.producer() as producer:
            await producer.send_and_wait("greetings", b"hello", key=b"world")
        async with client.consumer("greetings", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.key, record.value)

`odradek.sync` has the same without `await`; `odradek.serializers` makes bytes of objects;
`odradek.testing` has a cluster for your tests. Names are loaded when first used: importing this package
loads neither gRPC nor Arrow.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from odradek.admin.admin import Admin
    from odradek.admin.descriptions import (
        ClusterDescription,
        ConfigResource,
        ConfigResourceType,
        ConfigValue,
        NewTopic,
        PartitionOutcome,
        TopicDescription,
        TopicOutcome,
    )
    from odradek.client import Client
    from odradek.cluster.cluster import LinkState
    from odradek.consumer.consumer import Consumer
    from odradek.consumer.consumer_record import ConsumerRecord
    from odradek.consumer.group_options import GroupOptions
    from odradek.consumer.options import ConsumerOptions
    from odradek.errors import OdradekError
    from odradek.offsets import OffsetAndTimestamp
    from odradek.partitions import TopicPartition
    from odradek.producer.delivery import DeliveryFuture, RecordMetadata
    from odradek.producer.options import ProducerOptions
    from odradek.producer.producer import Producer
    from odradek.transports.security import SaslCredentials, TlsOptions

# gRPC's handlers of forks crash one child in five of a busy process before it gets to its exec(): a
# subprocess with `preexec_fn`, as Spark starts its JVM. No call works after a fork anyway (ForkedProcess).
# It is read when grpc is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_HOMES: Final = {
    "Admin": "odradek.admin.admin",
    "Client": "odradek.client",
    "ClusterDescription": "odradek.admin.descriptions",
    "ConfigResource": "odradek.admin.descriptions",
    "ConfigResourceType": "odradek.admin.descriptions",
    "ConfigValue": "odradek.admin.descriptions",
    "Consumer": "odradek.consumer.consumer",
    "ConsumerOptions": "odradek.consumer.options",
    "ConsumerRecord": "odradek.consumer.consumer_record",
    "GroupOptions": "odradek.consumer.group_options",
    "DeliveryFuture": "odradek.producer.delivery",
    "LinkState": "odradek.cluster.cluster",
    "NewTopic": "odradek.admin.descriptions",
    "OdradekError": "odradek.errors",
    "OffsetAndTimestamp": "odradek.offsets",
    "PartitionOutcome": "odradek.admin.descriptions",
    "Producer": "odradek.producer.producer",
    "ProducerOptions": "odradek.producer.options",
    "RecordMetadata": "odradek.producer.delivery",
    "SaslCredentials": "odradek.transports.security",
    "TlsOptions": "odradek.transports.security",
    "TopicDescription": "odradek.admin.descriptions",
    "TopicOutcome": "odradek.admin.descriptions",
    "TopicPartition": "odradek.partitions",
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'odradek' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
