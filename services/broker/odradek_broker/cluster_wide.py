"""Settings that count for the whole cluster: finds values of this broker that have no effect, for a warning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from odradek_broker.settings import BrokerSettings
from odradek_protocol.metadata.image import ALL_BROKERS, MetadataImage

_CLUSTER_WIDE = {
    "min_insync_replicas": "min.insync.replicas",
    "unclean_leader_election_enable": "unclean.leader.election.enable",
}
# These count where the cluster config has no value.
_FALLBACKS = {
    "auto_create_topics_enable": "auto.create.topics.enable",
    "default_replication_factor": "default.replication.factor",
    "num_partitions": "num.partitions",
}


def unused_settings(settings: BrokerSettings, image: MetadataImage) -> Iterator[str]:
    """Return a warning for each setting of this broker that differs from the value in force in the cluster."""
    cluster = image.configs.get(ALL_BROKERS) or {}
    defaults = {field.name: field.default for field in fields(settings)}
    for attribute, name in (_CLUSTER_WIDE | _FALLBACKS).items():
        default, own = _text(defaults[attribute]), _text(getattr(settings, attribute))
        in_force = cluster.get(name) or (own if attribute in _FALLBACKS else default)
        if own not in (default, in_force):
            yield (
                f"{name}={own} of this broker is not used, {in_force} is in force: set it at the"
                " controllers, or for a topic (`odradek topic alter-config`)"
            )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
