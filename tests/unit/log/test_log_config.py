"""The effect of each topic config on a log."""

from __future__ import annotations

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_protocol.metadata.config_definitions import WITHOUT_EFFECT
from odradek_protocol.metadata.configs import TOPIC_CONFIGS
from odradek_protocol.records.batch_header import Compression

OTHER_VALUES = {
    "cleanup.policy": "compact",
    "durability": "fsync",
    "message.timestamp.type": "LogAppendTime",
    "compression.type": "lz4",
    "preallocate": "true",
    "min.cleanable.dirty.ratio": "0.1",
}
OF_THE_CONTROLLER = {"min.insync.replicas", "unclean.leader.election.enable"}


@pytest.mark.parametrize("name", sorted(TOPIC_CONFIGS.keys() - OF_THE_CONTROLLER))
def test_a_config_is_obeyed_or_says_that_it_is_not(name: str) -> None:
    value = OTHER_VALUES.get(name, "12345")
    TOPIC_CONFIGS[name].parse(value)
    is_obeyed = LogConfig.from_topic_configs({name: value}) != LogConfig.from_topic_configs({})
    assert is_obeyed != TOPIC_CONFIGS[name].documentation.startswith(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("configs", "is_fsync"),
    [
        ({}, False),
        ({"durability": "fsync"}, True),
        ({"flush.messages": "1"}, True),
        ({"flush.messages": "2"}, False),
    ],
)
def test_a_flush_of_each_message_counts_only_synced_records(
    configs: dict[str, str], is_fsync: bool
) -> None:
    assert LogConfig.from_topic_configs(configs).is_fsync is is_fsync


@pytest.mark.parametrize(
    ("name", "compression"),
    [("producer", None), ("uncompressed", Compression.NONE), ("zstd", Compression.ZSTD)],
)
def test_the_compression_of_a_topic_is_read(name: str, compression: Compression | None) -> None:
    assert LogConfig.from_topic_configs({"compression.type": name}).compression is compression
