"""Settings that are the whole cluster's: a broker that was given its own value is told that it does not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from odradek_broker.settings.broker_settings import BrokerSettings
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage

_CLUSTER_WIDE = {
    "min_insync_replicas": "min.insync.replicas",
    "unclean_leader_election_enable": "unclean.leader.election.enable",
}
_UNLESS_THE_CLUSTER_SAYS = {
    "auto_create_topics_enable": "auto.create.topics.enable",
    "default_replication_factor": "default.replication.factor",
    "num_partitions": "num.partitions",
}


def unused_settings(settings: BrokerSettings, image: MetadataImage) -> Iterator[str]:
    """A sentence for each value here that differs from the one that leaders and controllers go by."""
    cluster = image.configs.get(ALL_BROKERS) or {}
    defaults = {one.name: one.default for one in fields(settings)}
    for field, name in (_CLUSTER_WIDE | _UNLESS_THE_CLUSTER_SAYS).items():
        default, own = _text(defaults[field]), _text(getattr(settings, field))
        in_force = cluster.get(name) or (own if field in _UNLESS_THE_CLUSTER_SAYS else default)
        if own not in (default, in_force):
            yield (
                f"{name}={own} of this broker is not used, {in_force} is in force: set it at the"
                " controllers, or for a topic (`odradek topic alter-config`)"
            )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
