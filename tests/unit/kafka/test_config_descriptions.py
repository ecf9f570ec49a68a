"""DescribeConfigs reports for each value the source that it comes from."""

from __future__ import annotations

import pytest

from odradek_broker.kafka.requests.administration.describe_configs import (
    describe_broker,
    describe_group,
    describe_topic,
)
from odradek_broker.rpc.admin_servicer import describe_broker as describe_over_grpc
from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.config_definitions import WITHOUT_EFFECT, ConfigSource
from odradek_protocol.metadata.records import ConfigResourceType
from odradek_protocol.rpc.v1 import admin_service_pb2 as pb
from odradek_runtime.settings import load_settings
from tests.unit.kafka.fake_broker import image


@pytest.mark.parametrize(
    ("assignments", "source"),
    [
        ((), ConfigSource.DEFAULT),
        (("log.retention.hours=168",), ConfigSource.STATIC),
        (("log.retention.hours=169",), ConfigSource.STATIC),
    ],
    ids=["not given", "the default given", "another value given"],
)
def test_a_setting_given_at_the_start_is_described_as_static(
    assignments: tuple[str, ...], source: ConfigSource
) -> None:
    settings = load_settings(
        BrokerSettings,
        env={},
        env_prefix="ODRADEK_BROKER_",
        assignments=(
            "node.id=1",
            "log.dir=/nowhere",
            "controller.rpc.endpoints=1@127.0.0.1:1",
            *assignments,
        ),
    )
    name = "log.retention.hours"
    described = {one.name: one for one in describe_broker(settings, image(), "1")}
    assert described[name].source == source
    resource = pb.ConfigResource(name="1", config_names=[name])
    (entry,) = describe_over_grpc(settings, image(), resource).entries
    assert entry.source == source


def settings() -> BrokerSettings:
    return load_settings(
        BrokerSettings,
        env={},
        env_prefix="ODRADEK_BROKER_",
        assignments=(
            "node.id=1",
            "log.dir=/nowhere",
            "controller.rpc.endpoints=1@127.0.0.1:1",
            "group.consumer.session.timeout.ms=30000",
        ),
    )


def test_a_group_has_its_own_value_or_the_brokers() -> None:
    image_ = image()
    image_.configs[ConfigResourceType.GROUP, "g"] = {"consumer.session.timeout.ms": "20000"}
    own = {config.name: config for config in describe_group(settings(), image_, "g")}
    other = {config.name: config for config in describe_group(settings(), image_, "other")}
    session = own["consumer.session.timeout.ms"]
    assert (session.value, session.source) == ("20000", ConfigSource.GROUP)
    assert [value for _, value, _ in session.synonyms] == ["20000", "30000", "45000"]
    assert other["consumer.session.timeout.ms"].value == "30000"
    assert other["consumer.heartbeat.interval.ms"].source == ConfigSource.DEFAULT


def test_configs_without_effect_are_described_where_they_are_set() -> None:
    image_ = image()
    name = "message.format.version"
    assert name not in {config.name for config in describe_topic(settings(), image_, "orders")}
    image_.configs[ConfigResourceType.TOPIC, "orders"] = {name: "2.8-IV1"}
    found = {config.name: config for config in describe_topic(settings(), image_, "orders")}
    assert found[name].value == "2.8-IV1"
    assert found[name].documentation.startswith(WITHOUT_EFFECT)
