"""The effect of each topic config on a log."""

from __future__ import annotations

import pytest

from odradek_broker.log.log_config import LogConfig
from odradek_broker.log_settings import LogSettings
from odradek_protocol.metadata.config_definitions import WITHOUT_EFFECT, ConfigError
from odradek_protocol.metadata.configs import TOPIC_CONFIGS
from odradek_protocol.records.batch_header import Compression
from odradek_protocol.records.compression import compress
from odradek_runtime.settings import SettingsError, load_settings

OTHER_VALUES = {
    "cleanup.policy": "compact",
    "durability": "fsync",
    "message.timestamp.type": "LogAppendTime",
    "compression.type": "lz4",
    "preallocate": "true",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.gzip.level": "4",
    "compression.lz4.level": "4",
    "compression.zstd.level": "4",
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
    ("codec", "level", "used"),
    [
        ("gzip", "-1", None),
        ("gzip", "9", 9),
        ("lz4", "9", None),
        ("lz4", "4", 4),
        ("lz4", "17", 12),
        ("zstd", "7", 7),
        ("zstd", "22", 19),
        ("zstd", "-131072", -100),
    ],
)
def test_levels_of_kafka_become_levels_of_the_codec(
    codec: str, level: str, used: int | None
) -> None:
    configs = {"compression.type": codec, f"compression.{codec}.level": level}
    for name, value in configs.items():
        TOPIC_CONFIGS[name].parse(value)
    config = LogConfig.from_topic_configs(configs)
    assert config.compression is not None
    assert config.compression_level == used
    assert compress(b"x" * 100, config.compression, config.compression_level)


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", "0"), ("gzip", "10"), ("gzip", "-2"), ("lz4", "0"), ("lz4", "18"), ("zstd", "23")],
)
def test_levels_that_kafka_does_not_have_are_refused(codec: str, level: str) -> None:
    with pytest.raises(ConfigError, match=f"compression.{codec}.level: .* is not a whole number"):
        TOPIC_CONFIGS[f"compression.{codec}.level"].parse(level)


def test_a_broker_has_defaults_of_compression_and_syncs_in_its_settings() -> None:
    settings = LogSettings(
        compression_type="gzip",
        compression_gzip_level=2,
        log_flush_interval_ms=500,
        log_flush_interval_messages=7,
    )
    defaults = settings.log_defaults()
    assert (defaults.compression, defaults.compression_level) == (Compression.GZIP, 2)
    assert (defaults.flush_ms, defaults.flush_messages) == (500, 7)
    own = LogConfig.from_topic_configs({"compression.type": "producer"}, defaults=defaults)
    assert own.compression is None


@pytest.mark.parametrize(
    ("name", "compression"),
    [("producer", None), ("uncompressed", Compression.NONE), ("zstd", Compression.ZSTD)],
)
def test_the_compression_of_a_topic_is_read(name: str, compression: Compression | None) -> None:
    assert LogConfig.from_topic_configs({"compression.type": name}).compression is compression


def test_a_segment_cannot_be_rolled_after_0_ms() -> None:
    def segment_ms(value: str) -> int:
        settings = load_settings(
            LogSettings,
            env={},
            env_prefix="T_",
            assignments=[f"log.roll.ms={value}", "log.roll.hours=2"],
        )
        return settings.log_defaults().segment_ms

    assert segment_ms("1") == 1
    assert segment_ms("-1") == 2 * 3_600_000
    with pytest.raises(
        SettingsError, match=r"log\.roll\.ms=.0. is not valid: it must be at least 1 ms"
    ):
        segment_ms("0")
