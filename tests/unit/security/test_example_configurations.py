"""Each configuration file in deploy/ is accepted by the process that it is for, and the files are
consistent with each other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_broker.kafka.listener import refuse_unencrypted_listeners
from odradek_broker.settings import BrokerSettings
from odradek_gateway.settings import GatewaySettings
from odradek_metadata_quorum.settings import QuorumProcessSettings
from odradek_runtime.listeners import refuse_open_without_authentication
from odradek_runtime.settings import load_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLES = DEPLOY / "examples"
OF_THE_POD = {  # what the manifests give by the environment
    "quorum": {
        "NODE_ID": "1",
        "CLUSTER_ID": "c",
        "CONTROLLER_QUORUM_VOTERS": "1@quorum-1.quorum:9095",
    },
    "broker": {
        "NODE_ID": "1",
        "CONTROLLER_RPC_ENDPOINTS": "1@quorum-1.quorum:9094",
    },
}


def broker_settings(file: Path, env: dict[str, str]) -> BrokerSettings:
    return load_settings(
        BrokerSettings, env=env, env_prefix="ODRADEK_BROKER_", config_file=file, assignments=()
    )


def quorum_settings(file: Path, env: dict[str, str]) -> QuorumProcessSettings:
    return load_settings(
        QuorumProcessSettings, env=env, env_prefix="ODRADEK_QUORUM_", config_file=file
    )


def test_the_brokers_example_listens_on_nothing_open() -> None:
    settings = broker_settings(EXAMPLES / "broker.properties", {})
    settings.check()
    refuse_unencrypted_listeners(settings, insecure=False)
    refuse_open_without_authentication(
        settings.listeners, settings.authenticated_listeners(), insecure=False
    )


@pytest.mark.parametrize("folder", ["examples", "k8s/base"])
def test_no_gateway_is_a_super_user(folder: str) -> None:
    """SECURITY.md promises that a compromised gateway does not have the rights of super users."""
    env = {f"ODRADEK_BROKER_{key}": value for key, value in OF_THE_POD["broker"].items()}
    settings = broker_settings(DEPLOY / folder / "broker.properties", env)
    assert settings.delegation_principals
    assert not set(settings.delegation_principals) & set(settings.super_users)


def test_the_gateways_example_listens_on_nothing_open() -> None:
    settings = load_settings(
        GatewaySettings,
        env={},
        env_prefix="ODRADEK_GATEWAY_",
        config_file=EXAMPLES / "gateway.properties",
        assignments=(),
    )
    settings.check(insecure=False)


def test_the_controllers_example_fits_together() -> None:
    settings = quorum_settings(EXAMPLES / "quorum.properties", {})
    settings.check()
    assert settings.ssl_certificate
    assert settings.ssl_ca


@pytest.mark.parametrize("folder", ["examples", "k8s/base"])
def test_acks_all_takes_two_replicas_and_topics_have_three(folder: str) -> None:
    """Controllers hold these defaults of the cluster; a broker refuses to start with such a
    setting.
    """
    env = {
        name: {f"ODRADEK_{name.upper()}_{key}": value for key, value in given.items()}
        for name, given in OF_THE_POD.items()
    }
    if folder == "examples":
        env = {"quorum": {}, "broker": {}}
    controllers = quorum_settings(DEPLOY / folder / "quorum.properties", env["quorum"])
    cluster = dict(controllers.initial_configs())
    assert cluster["min.insync.replicas"] == "2"
    assert cluster["default.replication.factor"] == "3"
    broker_settings(DEPLOY / folder / "broker.properties", env["broker"])
