"""A broker that was given a value of its own for what is the whole cluster's is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from odradek_broker.cluster_wide import unused_settings
from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage


@pytest.mark.parametrize(
    ("own", "cluster", "told"),
    [
        ({}, {}, None),
        ({}, {"min.insync.replicas": "2"}, None),
        ({"min_insync_replicas": 2}, {"min.insync.replicas": "2"}, None),
        ({"min_insync_replicas": 2}, {}, "min.insync.replicas=2 of this broker is not used, 1 is"),
        (
            {"min_insync_replicas": 3},
            {"min.insync.replicas": "2"},
            "min.insync.replicas=3 of this broker is not used, 2 is in force",
        ),
        (
            {"unclean_leader_election_enable": True},
            {},
            "unclean.leader.election.enable=true of this broker is not used, false is",
        ),
        ({"num_partitions": 3}, {}, None),
        ({"num_partitions": 3}, {"num.partitions": "3"}, None),
        (
            {"num_partitions": 3},
            {"num.partitions": "4"},
            "num.partitions=3 of this broker is not used, 4 is in force",
        ),
        (
            {"auto_create_topics_enable": False},
            {"auto.create.topics.enable": "true"},
            "auto.create.topics.enable=false of this broker is not used, true is",
        ),
    ],
)
def test_a_value_that_does_not_count_is_told(
    own: dict[str, Any], cluster: dict[str, str], told: str | None
) -> None:
    image = MetadataImage()
    image.configs[ALL_BROKERS] = cluster
    settings = BrokerSettings(
        node_id=1, log_dir=Path("/nowhere"), controllers=((1, "127.0.0.1", 1),), **own
    )
    said = list(unused_settings(settings, image))
    assert len(said) == (told is not None)
    assert all(str(told) in one and "controllers" in one for one in said)
