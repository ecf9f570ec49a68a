"""The settings of a broker, and the names of its listeners."""

from odradek_broker.settings.broker_settings import ENV_PREFIX, BrokerSettings
from odradek_broker.settings.listener_settings import (
    GRPC,
    KAFKA,
    REPLICATION,
    is_grpc_listener,
    is_kafka_listener,
)

__all__ = [
    "ENV_PREFIX",
    "GRPC",
    "KAFKA",
    "REPLICATION",
    "BrokerSettings",
    "is_grpc_listener",
    "is_kafka_listener",
]
