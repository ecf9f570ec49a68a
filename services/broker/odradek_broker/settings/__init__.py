"""A broker's settings."""

from odradek_broker.settings.broker_settings import (
    ENV_PREFIX,
    GRPC,
    KAFKA,
    REPLICATION,
    BrokerSettings,
    is_grpc_listener,
    is_kafka_listener,
    settings_text,
)

__all__ = [
    "ENV_PREFIX",
    "GRPC",
    "KAFKA",
    "REPLICATION",
    "BrokerSettings",
    "is_grpc_listener",
    "is_kafka_listener",
    "settings_text",
]
