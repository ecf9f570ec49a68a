"""Commands that change configs: what they advise if a config does not exist."""

from __future__ import annotations

import pytest

from odradek import Client
from odradek.admin.descriptions import ConfigResource, ConfigResourceType
from odradek.cli.configs import change_configs
from odradek.testing import MemoryCluster


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.m", "did you mean retention.ms?"),
        ("zzz", "the configs of a topic are cleanup.policy, compression.gzip.level, "),
    ],
)
async def test_the_hint_for_an_unknown_topic_config_names_no_option_that_the_command_lacks(
    cluster: MemoryCluster, client: Client, name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic("t")
    topic = ConfigResource(type=ConfigResourceType.TOPIC, name="t")
    with pytest.raises(SystemExit):
        await change_configs(client, topic, {}, [name])
    error = capsys.readouterr().err
    assert f"there is no topic config {name}: {hint}" in error
    assert "--all" not in error
