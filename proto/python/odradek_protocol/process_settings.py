"""The names of the settings of every kind of process. If a process is given a setting of another process, its error
uses these names to say where the setting belongs.

Each process declares its settings, with types, ranges and documentation, in its own package, which other processes do
not import. So the names are repeated here, and `tests/tidy` compares them with the declarations.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from odradek_protocol.metadata.config_definitions import (
    BROKER_CONFIGS,
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
)


class Process(StrEnum):
    """A kind of process, named by the command that runs it, such as `odradek broker`."""

    BROKER = "broker"
    CONTROLLER = "quorum"
    GATEWAY = "gateway"


_NODES: Final = """
    health.port host.id log.format log.level metrics.host metrics.port ssl.ca.location
    ssl.certificate.location ssl.key.location
"""
_BROKERS: Final = """
    acks.all.without.controller.enable advertised.listeners authorizer.class.name background.threads
    broker.heartbeat.interval.ms broker.id broker.rack broker.session.timeout.ms cluster.id
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    connections.max.idle.ms connections.max.reauth.ms controlled.shutdown.timeout.ms
    controller.rpc.bootstrap controller.rpc.endpoints delegation.principals fetch.max.bytes
    follower.replication.throttled.rate group.consumer.assignors
    group.consumer.heartbeat.interval.ms group.consumer.max.size group.consumer.migration.policy
    group.consumer.rebalance.heartbeat.interval.ms group.consumer.session.timeout.ms
    group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size
    group.min.session.timeout.ms grpc.session.lifetime.ms listener.security.protocol.map listeners
    log.cleaner.backoff.ms log.cleaner.delete.retention.ms log.cleaner.max.compaction.lag.ms
    log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleanup.policy log.dir
    log.dir.stray.retention.ms log.dirs log.durability.default
    log.flush.interval.messages log.flush.interval.ms
    log.flush.offset.checkpoint.interval.ms log.index.interval.bytes log.index.size.max.bytes
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.message.timestamp.type log.retention.bytes log.retention.check.interval.ms
    log.retention.hours log.retention.minutes log.retention.ms log.roll.hours log.roll.ms
    log.segment.bytes log.segment.delete.delay.ms max.connections max.connections.per.ip
    message.max.bytes node.id offset.metadata.max.bytes offsets.retention.check.interval.ms
    offsets.retention.minutes offsets.topic.num.partitions offsets.topic.replication.factor
    offsets.topic.durability offsets.topic.segment.bytes producer.id.expiration.ms queued.max.request.bytes
    readiness.catch.up.timeout.ms replica.credit.bytes replica.fetch.max.bytes
    replica.fetch.response.max.bytes replica.lag.time.max.ms replica.selector.class
    sasl.enabled.mechanisms sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.location sasl.oauthbearer.sub.claim.name
    socket.request.max.bytes ssl.client.auth super.users transaction.completion.wait.max.ms
    transaction.hanging.abort.enable transaction.hanging.check.interval.ms
    transaction.ids.max transaction.load.grace.ms transaction.max.timeout.ms
    transaction.ledger.expiration.ms transaction.partitions.max transaction.prepared.timeout.ms
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.staged.lease.ms
    transaction.state.log.min.isr transaction.state.log.num.partitions
    transaction.state.log.replication.factor transaction.state.log.segment.bytes
    transaction.verification.timeout.ms transactional.id.expiration.ms
"""
_CONTROLLERS: Final = """
    broker.session.timeout.ms broker.stream.grace.ms cluster.id
    controller.quorum.election.timeout.ms controller.quorum.voters controller.rpc.endpoints
    listeners log.dirs metadata.log.dir metadata.log.max.entries.between.snapshots
    metadata.log.max.snapshot.bytes node.id storage.format.if.empty
"""
_GATEWAYS: Final = """
    advertised.tls.name advertised.url api.v2.enable api.v3.enable authentication.methods
    basic.cache.ms basic.sasl.mechanism bootstrap callers.max consumer.instance.timeout.ms
    consumer.instances.max consumer.prefetch.bytes.max consumer.request.timeout.ms.max
    delegation.principals failed.logins.per.minute.max forwarded.allow.ips http.allowed.hosts
    http.allowed.origins http.ssl.ca.location http.ssl.certificate.location http.ssl.client.auth
    http.ssl.key.location jwt.algorithms jwt.audience jwt.issuer jwt.jwks.location jwt.leeway.ms
    jwt.principal.claim listen log.format log.level record.bytes.max request.bodies.bytes.max
    request.body.bytes.max request.body.idle.timeout.ms request.stream.idle.timeout.ms requests.max
    requests.per.second.max shutdown.timeout.ms ssl.ca.location ssl.certificate.location
    ssl.key.location
"""

SETTINGS_OF: Final = {
    Process.BROKER: frozenset((_NODES + _BROKERS).split()),
    Process.CONTROLLER: frozenset((_NODES + _CONTROLLERS).split()) | CLUSTER_CONFIGS.keys(),
    Process.GATEWAY: frozenset(_GATEWAYS.split()),
}
"""The settings of each kind of process. Controllers also accept the configs of the whole cluster as settings, which
count at the first start of the cluster.
"""

ALL_NAMES: Final = frozenset().union(*SETTINGS_OF.values(), BROKER_CONFIGS, TOPIC_CONFIGS)


def place_of(name: str) -> str | None:
    """Return a clause that says where a setting or config must be set, or None if the name is unknown."""
    if name in CLUSTER_CONFIGS:
        return (
            f"{name} is a config of the whole cluster: change it with `odradek cluster config --set {name}=...`, or"
            " set it for the controllers (`odradek quorum`) before the cluster's first start"
        )
    commands = [f"`odradek {process}`" for process, names in SETTINGS_OF.items() if name in names]
    if commands:
        return f"{name} is a setting of {' and '.join(commands)}: set it there"
    if name in BROKER_CONFIGS:
        return f"{name} is a config of the whole cluster: change it with `odradek cluster config --set {name}=...`"
    if name in TOPIC_CONFIGS:
        return f"{name} is a config of topics: change it with `odradek topic alter-config TOPIC --set {name}=...`"
    return None
