"""The table of topic and broker configs: names, ranges, defaults, sources, and errors that say what
to do.
"""

from __future__ import annotations

import pytest

from odradek_protocol.identity import TopicId, TopicName
from odradek_protocol.metadata.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigError,
    ConfigSource,
    check_config,
    check_together,
    cluster_config,
    resolve_topic_config,
    set_topic_configs,
    why_no_configs,
)
from odradek_protocol.metadata.records import Config, ConfigResourceType, Topic
from tests.unit.protocol.test_image import replayed

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, BROKER_CONFIGS], ids=["topic", "broker"])
def test_every_default_fits_its_own_definition(table: dict[str, object]) -> None:
    for name, definition in (TOPIC_CONFIGS if table is TOPIC_CONFIGS else BROKER_CONFIGS).items():
        definition.parse(definition.default)
        assert definition.documentation, name
        assert definition.name == name


def test_every_topic_config_has_a_cluster_default() -> None:
    for definition in TOPIC_CONFIGS.values():
        assert definition.default_name in BROKER_CONFIGS


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("retention.ms", "-1", -1),
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("unclean.leader.election.enable", "TRUE", True),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("durability", "fsync", "fsync"),
    ],
)
def test_good_values_are_parsed(name: str, value: str, parsed: object) -> None:
    assert check_config(TOPIC, name, value) == parsed


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retenion.ms", "1", "did you mean retention.ms?"),
        ("remote.storage.enable", "true", "'true' is not false"),
        ("retention.ms", "1d", "retention.ms: '1d' is not a whole number from -1"),
        ("retention.ms", "-2", "-2 is not a whole number from -1"),
        ("retention.ms", "9223372036854775808", "(LONG)"),
        ("retention.ms", "1" * 5000, "(LONG)"),
        ("retention.ms", "١", "is not a whole number"),
        ("segment.bytes", "2147483648", "(INT)"),
        ("min.cleanable.dirty.ratio", "1.5", "up to 1"),
        ("min.cleanable.dirty.ratio", "nan", "is not a number"),
        ("cleanup.policy", "compct", "compact and delete"),
        ("compression.type", "lzma", "one of uncompressed, zstd"),
        ("preallocate", "yes", "true or false"),
        ("min.insync.replicas", "0", "from 1"),
        ("durability", "x" * 40_000, "at most 32767"),
        ("max.message.bytes", "50331649", "up to 50331648"),  # a replica must be able to take it
    ],
)
def test_a_bad_config_says_what_is_wrong_and_what_would_do(
    name: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(TOPIC, name, value)
    assert said in str(refused.value)


def test_lags_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="above"):
        check_together({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    check_together({"min.compaction.lag.ms": "10"})


def test_a_topics_value_wins_over_the_clusters_over_the_built_in() -> None:
    definition = TOPIC_CONFIGS["retention.ms"]
    image = replayed(Topic(topic_id=TopicId(b"a" * 16), name=TopicName("a")))
    assert resolve_topic_config(image, "a", definition) == ("604800000", ConfigSource.DEFAULT)
    replayed(
        Config(resource_type=BROKER, resource_name="", name="log.retention.ms", value="5"),
        image=image,
    )
    assert resolve_topic_config(image, "a", definition) == ("5", ConfigSource.ALL_BROKERS)
    replayed(
        Config(resource_type=TOPIC, resource_name="a", name="retention.ms", value="7"), image=image
    )
    assert resolve_topic_config(image, "a", definition) == ("7", ConfigSource.TOPIC)
    assert set_topic_configs(image, "a") == {"retention.ms": "7"}
    assert set_topic_configs(image, "other") == {"retention.ms": "5"}


def test_internal_topics_are_synced_unless_somebody_says_otherwise() -> None:
    definition = TOPIC_CONFIGS["durability"]
    image = replayed()
    internal = resolve_topic_config(image, "__consumer_offsets", definition)
    assert internal == ("fsync", ConfigSource.DEFAULT)
    assert resolve_topic_config(image, "a", definition)[0] == "replicated"
    replayed(
        Config(
            resource_type=TOPIC,
            resource_name="__consumer_offsets",
            name="durability",
            value="replicated",
        ),
        image=image,
    )
    assert resolve_topic_config(image, "__consumer_offsets", definition)[0] == "replicated"


def test_cluster_wide_configs_are_read_parsed() -> None:
    image = replayed()
    assert cluster_config(image, "auto.leader.rebalance.enable") is True
    assert cluster_config(image, "num.partitions") == 1


@pytest.mark.parametrize(
    ("resource_type", "text"), [(8, "set log.level"), (16, "KIP-714"), (77, "type 77")]
)
def test_resources_without_configs_are_told_apart(resource_type: int, text: str) -> None:
    assert text in why_no_configs(resource_type)
