"""The examples in deploy/examples are settings that a process would start with."""

from __future__ import annotations

from pathlib import Path

from odradek_broker.listeners.kafka_listener import refuse_unencrypted_listeners
from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_runtime.listeners import refuse_open_without_authentication
from odradek_runtime.settings import load_settings

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


def test_the_brokers_example_listens_on_nothing_open() -> None:
    settings = load_settings(
        BrokerSettings,
        env={},
        env_prefix="ODRADEK_BROKER_",
        config_file=EXAMPLES / "broker.properties",
        assignments=(),
    )
    settings.check()
    refuse_unencrypted_listeners(settings, insecure=False)
    refuse_open_without_authentication(
        settings.listeners, settings.authenticated_listeners(), insecure=False
    )


def test_the_gateways_example_listens_on_nothing_open() -> None:
    settings = load_settings(
        GatewaySettings,
        env={},
        env_prefix="ODRADEK_GATEWAY_",
        config_file=EXAMPLES / "gateway.properties",
        assignments=(),
    )
    settings.check(insecure=False)
