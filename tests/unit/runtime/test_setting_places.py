"""A process that is given a setting of another process refuses to start, and names the place where
the setting belongs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odradek.embedded import ChildProcess, ClusterPlan, EmbeddedCluster
from odradek_broker import settings as broker
from odradek_gateway import settings as gateway
from odradek_metadata_quorum import settings as quorum
from odradek_protocol.metadata.config_definitions import (
    BROKER_CONFIGS,
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
)
from odradek_protocol.process_settings import SETTINGS_OF, Process
from odradek_runtime.settings import SettingsError, load_settings

CLASSES: dict[Process, tuple[type[Any], str]] = {
    Process.BROKER: (broker.BrokerSettings, broker.ENV_PREFIX),
    Process.CONTROLLER: (quorum.QuorumProcessSettings, quorum.ENV_PREFIX),
    Process.GATEWAY: (gateway.GatewaySettings, gateway.ENV_PREFIX),
}
NEEDED = {
    Process.BROKER: ("node.id=1", "log.dirs=/nowhere", "controller.rpc.endpoints=1@h:1"),
    Process.CONTROLLER: (
        *("node.id=1", "cluster.id=c", "log.dirs=/nowhere"),
        "controller.quorum.voters=1@h:1",
    ),
    Process.GATEWAY: (),
}
SOURCES = ("flag", "environment", "file")


def refusal(process: Process, name: str, source: str, folder: Path) -> str:
    """Return the error of a process that is given a setting, in one of three ways."""
    settings_class, prefix = CLASSES[process]
    env, file, assignments = {}, folder / "process.properties", list(NEEDED[process])
    file.write_text("")
    if source == "flag":
        assignments.append(f"{name}=1")
    elif source == "environment":
        env[prefix + name.upper().replace(".", "_")] = "1"
    else:
        file.write_text(f"{name}=1\n")
    with pytest.raises(SettingsError) as refused:
        load_settings(
            settings_class, env=env, env_prefix=prefix, config_file=file, assignments=assignments
        )
    return str(refused.value)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("process", [Process.BROKER, Process.GATEWAY])
@pytest.mark.parametrize("name", CLUSTER_CONFIGS)
def test_a_config_of_the_cluster_is_refused_with_both_places_where_it_counts(
    process: Process, name: str, source: str, tmp_path: Path
) -> None:
    error = refusal(process, name, source, tmp_path)
    assert f"{name} is a config of the whole cluster" in error
    assert f"`odradek cluster config --set {name}=...`" in error
    assert "`odradek quorum`" in error


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("process", CLASSES)
def test_a_setting_of_another_process_is_refused_with_the_name_of_that_process(
    process: Process, source: str, tmp_path: Path
) -> None:
    for other, names in SETTINGS_OF.items():
        for name in names - SETTINGS_OF[process] - CLUSTER_CONFIGS.keys():
            error = refusal(process, name, source, tmp_path)
            assert f"{name} is a setting of " in error
            assert f"`odradek {other}`" in error


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("process", CLASSES)
def test_a_config_that_is_set_at_run_time_only_is_refused_with_its_command(
    process: Process, source: str, tmp_path: Path
) -> None:
    everywhere = frozenset().union(*SETTINGS_OF.values())
    for name in BROKER_CONFIGS.keys() - everywhere:
        assert "`odradek cluster config --set" in refusal(process, name, source, tmp_path)
    for name in TOPIC_CONFIGS.keys() - everywhere - BROKER_CONFIGS.keys():
        assert "`odradek topic alter-config TOPIC" in refusal(process, name, source, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("process", "wrong", "right"),
    [
        (Process.BROKER, "log.segment.byte", "log.segment.bytes"),
        (Process.CONTROLLER, "min.insync.replica", "min.insync.replicas"),
        (Process.GATEWAY, "request.body.byte.max", "request.body.bytes.max"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_closest_one(
    process: Process, wrong: str, right: str, source: str, tmp_path: Path
) -> None:
    error = refusal(process, wrong, source, tmp_path)
    shown = CLASSES[process][1] + right.upper().replace(".", "_")
    assert f"did you mean {shown if source == 'environment' else right}?" in error


def test_a_development_cluster_gives_each_process_the_settings_that_it_has(tmp_path: Path) -> None:
    settings = (
        "min.insync.replicas=2",
        "controller.quorum.election.timeout.ms=2000",
        "broker.session.timeout.ms=4000",
        "log.level=DEBUG",
        "log.segment.bytes=4096",
        "ssl.client.auth=none",
        "requests.max=7",
        "no.such.setting=1",
    )
    cluster = EmbeddedCluster(
        ClusterPlan(brokers=1, controllers=1, gateways=1, data_dir=tmp_path, settings=settings)
    )

    def given(process: ChildProcess) -> set[str]:
        return set(settings) & set(process.arguments)

    assert given(cluster.controllers[1]) == {*settings[:4]}
    assert given(cluster.brokers[1]) == {*settings[2:6], "no.such.setting=1"}
    assert given(cluster.gateways[1]) == {"log.level=DEBUG", "requests.max=7"}


def test_a_name_close_to_one_of_another_place_is_refused_with_both(tmp_path: Path) -> None:
    error = refusal(Process.BROKER, "num.partitons", "flag", tmp_path)
    assert (
        "did you mean num.partitions? But num.partitions is a config of the whole cluster" in error
    )
