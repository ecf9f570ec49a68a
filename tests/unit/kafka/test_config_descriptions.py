"""DescribeConfigs: where a value comes from."""

from __future__ import annotations

import pytest

from odradek_broker.kafka.requests.administration.describe_configs import describe_broker
from odradek_broker.rpc.admin_servicer import describe_broker as describe_over_grpc
from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.config_definitions import ConfigSource
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
