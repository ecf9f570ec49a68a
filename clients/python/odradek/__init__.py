"""The Python SDK of Odradek: a producer, a consumer and an admin, over gRPC. The following program needs the topic
`greetings` (`odradek topic create greetings`):

    async with odradek.Client("localhost:9090") as client:
        async with client.producer() as producer:
            await producer.send_and_wait("greetings", b"hello", key=b"world")
        async with client.consumer("greetings", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.key, record.value)

`odradek.sync` has the same classes without `await`, `odradek.serializers` converts objects to bytes, `odradek.errors`
has all errors, and `odradek.testing` has an in-memory cluster for tests. Modules are imported when a name is first
used, so that `import odradek` loads neither gRPC nor Arrow.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from odradek import errors, serializers, sync, testing
    from odradek.admin.access import (
        Acl,
        AclFilter,
        AclOperation,
        AclPermission,
        PatternType,
        Quota,
        ResourceType,
        ScramMechanism,
        ScramUser,
    )
    from odradek.admin.admin import Admin
    from odradek.admin.descriptions import (
        BrokerDescription,
        ClusterDescription,
        ConfigResource,
        ConfigResourceType,
        ConfigSource,
        ConfigValue,
        FeatureDescription,
        GroupDescription,
        GroupListing,
        GroupMember,
        ListenerDescription,
        LogDirDescription,
        NewTopic,
        PartitionOutcome,
        QuorumDescription,
        Reassignment,
        TopicDescription,
        TopicOutcome,
        Voter,
    )
    from odradek.client import Client
    from odradek.cluster.cluster import LinkState
    from odradek.cluster.security import SaslCredentials, TlsOptions
    from odradek.consumer.consumer import Consumer
    from odradek.consumer.consumer_record import ConsumerRecord
    from odradek.consumer.options import ConsumerOptions, GroupIdentity, GroupOptions
    from odradek.errors import OdradekError
    from odradek.partitions import OffsetAndTimestamp, TopicPartition
    from odradek.producer.delivery import DeliveryFuture, RecordMetadata
    from odradek.producer.options import ProducerOptions
    from odradek.producer.producer import Producer
    from odradek.producer.transaction import Transaction

# When a busy process forks (for instance for a subprocess with `preexec_fn`, as Spark does to start its JVM), gRPC's
# fork handlers crash one child process in five before its exec(). The handlers are not needed, because no call works
# after a fork (ForkedProcess). gRPC reads its variables when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Without this setting, gRPC writes its own log lines to the standard error of the program, such as "Got goaway",
# although the SDK's errors report the same problems.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_HOMES: Final = {
    "Acl": "odradek.admin.access",
    "AclFilter": "odradek.admin.access",
    "AclOperation": "odradek.admin.access",
    "AclPermission": "odradek.admin.access",
    "Admin": "odradek.admin.admin",
    "BrokerDescription": "odradek.admin.descriptions",
    "Client": "odradek.client",
    "ClusterDescription": "odradek.admin.descriptions",
    "ConfigResource": "odradek.admin.descriptions",
    "ConfigResourceType": "odradek.admin.descriptions",
    "ConfigSource": "odradek.admin.descriptions",
    "ConfigValue": "odradek.admin.descriptions",
    "Consumer": "odradek.consumer.consumer",
    "ConsumerOptions": "odradek.consumer.options",
    "ConsumerRecord": "odradek.consumer.consumer_record",
    "DeliveryFuture": "odradek.producer.delivery",
    "FeatureDescription": "odradek.admin.descriptions",
    "GroupDescription": "odradek.admin.descriptions",
    "GroupIdentity": "odradek.consumer.options",
    "GroupListing": "odradek.admin.descriptions",
    "GroupMember": "odradek.admin.descriptions",
    "GroupOptions": "odradek.consumer.options",
    "LinkState": "odradek.cluster.cluster",
    "ListenerDescription": "odradek.admin.descriptions",
    "LogDirDescription": "odradek.admin.descriptions",
    "NewTopic": "odradek.admin.descriptions",
    "OdradekError": "odradek.errors",
    "OffsetAndTimestamp": "odradek.partitions",
    "PartitionOutcome": "odradek.admin.descriptions",
    "PatternType": "odradek.admin.access",
    "Producer": "odradek.producer.producer",
    "ProducerOptions": "odradek.producer.options",
    "QuorumDescription": "odradek.admin.descriptions",
    "Reassignment": "odradek.admin.descriptions",
    "Quota": "odradek.admin.access",
    "RecordMetadata": "odradek.producer.delivery",
    "ResourceType": "odradek.admin.access",
    "SaslCredentials": "odradek.cluster.security",
    "ScramMechanism": "odradek.admin.access",
    "ScramUser": "odradek.admin.access",
    "TlsOptions": "odradek.cluster.security",
    "TopicDescription": "odradek.admin.descriptions",
    "TopicOutcome": "odradek.admin.descriptions",
    "TopicPartition": "odradek.partitions",
    "Transaction": "odradek.producer.transaction",
    "Voter": "odradek.admin.descriptions",
}
_MODULES: Final = ("errors", "serializers", "sync", "testing")
_DISTRIBUTION: Final = "odradek"

__all__ = [
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
    "errors",
    "serializers",
    "sync",
    "testing",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    elif name == "__version__":
        value = _version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'odradek' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name[:2] == "__")})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:  # The code runs from a source tree that was never installed.
        return "0+unknown"
