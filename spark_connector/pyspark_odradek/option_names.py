"""The names of all options of source and sink, and the check of the names that a user gives.

An option of the client has the prefix `kafka.` or `odradek.`, which mean the same; the other options have none. With a
prefix, a name is refused unless it is known here or is an option of Kafka's clients: a query that was written for Kafka
may set those, and a warning lists the ones that have no effect. Without a prefix, a name is refused if it is nearly a
known one; all others are accepted, because they may be Spark's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from enum import Enum
from typing import Final

PREFIXES: Final = ("odradek.", "kafka.")
_RATIO_MIN: Final = 0.8
_log = logging.getLogger(__name__)
_warned: set[str] = set()
"""The warnings that this process has logged. Spark makes a writer for each batch of a stream."""
_WARNED_MAX: Final = 100


class Role(Enum):
    """Whether options belong to a source or to a sink."""

    SOURCE = "source"
    SINK = "sink"


STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
"""The options that select what a source reads, in lower case."""
UNPREFIXED: Final[dict[Role, tuple[str, ...]]] = {
    Role.SOURCE: (
        *("subscribe", "subscribePattern", "assign"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders"),
        *("isolationLevel", "minPartitions", "maxRecordsPerPartition"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("kafkaConsumer.pollTimeoutMs", "rack", "groupIdPrefix"),
    ),
    Role.SINK: (
        *("topic", "includeHeaders", "delivery", "transactionalIdPrefix"),
        "preparedTimeoutMs",
    ),
}
"""The options without a prefix."""
_INTERNAL: Final = frozenset(["stepquery", "stepnumber"])
_CLIENT: Final = frozenset(
    [
        *("bootstrap.servers", "security.protocol", "ssl.server.name"),
        *("ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.type"),
        *("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        *("ssl.keystore.type", "ssl.ca.location", "ssl.certificate.location"),
        *("ssl.key.location", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config"),
        *("sasl.username", "sasl.password"),
        *("isolation.level", "client.rack", "group.id"),
        *("acks", "allow.auto.create.topics", "batch.size", "buffer.memory"),
        *("compression.type", "delivery.timeout.ms", "enable.idempotence", "linger.ms"),
        *("max.block.ms", "max.request.size", "request.timeout.ms"),
    ]
)
"""The options of the client that have an effect in a source or a sink. Pipelines pass all of them to both."""
_REFUSED: Final = frozenset(
    [
        *("ssl.truststore.password", "ssl.keystore.password", "ssl.key.password"),
        *("auto.offset.reset", "key.deserializer", "value.deserializer"),
        *("enable.auto.commit", "interceptor.classes", "key.serializer", "value.serializer"),
        *("transactional.id", "partitioner.class"),
    ]
)
"""The options of Kafka's clients that source or sink refuse with their own messages."""
_WITHOUT_EFFECT: Final = frozenset(
    [
        *(
            "auto.commit.interval.ms",
            "auto.include.jmx.reporter",
            "check.crcs",
            "client.dns.lookup",
        ),
        *("client.id", "compression.gzip.level", "compression.lz4.level"),
        *("compression.zstd.level", "config.providers", "connections.max.idle.ms"),
        *("default.api.timeout.ms", "enable.metrics.push", "exclude.internal.topics"),
        *("fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.instance.id"),
        *("group.protocol", "group.remote.assignor", "heartbeat.interval.ms"),
        *("max.in.flight.requests.per.connection", "max.partition.fetch.bytes"),
        *("max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms"),
        *("metadata.max.idle.ms", "metadata.recovery.rebootstrap.trigger.ms"),
        *("metadata.recovery.strategy", "metric.reporters", "metrics.num.samples"),
        *("metrics.recording.level", "metrics.sample.window.ms"),
        *("partition.assignment.strategy", "partitioner.adaptive.partitioning.enable"),
        *("partitioner.availability.timeout.ms", "partitioner.ignore.keys"),
        *("receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
        *("retries", "retry.backoff.max.ms", "retry.backoff.ms", "security.providers"),
        *("send.buffer.bytes", "session.timeout.ms", "share.acknowledgement.mode"),
        *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
        *("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm"),
        *("ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.protocol"),
        *("ssl.provider", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm"),
        *("transaction.timeout.ms", "transaction.two.phase.commit.enable"),
    ]
)
"""The other options of Kafka's consumers and producers. Those for logins (`sasl.`) are checked with the login."""
_OF_SPARK: Final = frozenset(
    [
        *("path", "checkpointlocation", "queryname", "outputmode", "mergeschema", "compression"),
        *("truncate", "numrows", "rowspersecond", "maxfilespertrigger", "maxbytespertrigger"),
    ]
)
"""Options of Spark and of its other sources, which programs also pass to this source. They have no prefix."""
_COUNTERPARTS: Final = {"topic": "subscribe", "subscribe": "topic"}
"""For an option of the source, the option of the sink with the same meaning, and the reverse."""


def refuse_misspelt(options: Iterable[str], role: Role) -> None:
    """Raise ValueError for an option with a prefix whose name is unknown, and for one without a prefix whose name is
    nearly, but not exactly, that of an option of source or sink.

    The message contains no value, because the value of a misspelt name may be a password.
    """
    for given in options:
        name, prefix = _split(given)
        if _is_accepted(name, prefix):
            continue
        meant = _meant(name, prefix, role)
        # Unknown names that begin with "sasl." are accepted here. They are checked with the login, because Kafka's
        # clients ignore them if there is no login.
        if meant is not None or (prefix and not name.startswith("sasl.")):
            problem = "." if meant is None else f"; did you mean {meant}?"
            raise ValueError(
                f"unknown option {given!r}{problem} The options of the {role.value} are"
                f" {', '.join(UNPREFIXED[role])}, and those of the client, which begin with kafka. or odradek."
            )


def _is_accepted(name: str, prefix: str) -> bool:
    if _has_no_effect(name):
        return True
    if prefix:
        return name in _CLIENT | _REFUSED
    known = _OF_SPARK | _INTERNAL
    return name in known or any(name in _by_lower(UNPREFIXED[role]) for role in Role)


def _meant(name: str, prefix: str, role: Role) -> str | None:
    """Return the option that a user probably meant with an unknown `name`, as the user should write it. If there is
    none, return None.

    An option with exactly this name, but with another prefix, comes before options with similar names.
    """
    (other,) = [other for other in Role if other is not role]
    of_other = _by_lower(UNPREFIXED[other]).items()
    client = {known: f"{prefix or PREFIXES[-1]}{known}" for known in _CLIENT}
    without_prefix = [
        _by_lower(UNPREFIXED[role]),
        {lowered: _of_other_side(known, other) for lowered, known in of_other},
    ]
    kinds = [client, *without_prefix] if prefix else [*without_prefix, client]
    exact = [known[name] for known in kinds if name in known]
    similar = (nearest for known in kinds if (nearest := _nearest(name, known)) is not None)
    return exact[0] if exact else next(similar, None)


def is_source(options: Iterable[str]) -> bool:
    """Return whether the options select what a source reads."""
    return any(name.lower() in STRATEGIES for name in options)


def warn_without_effect(options: Iterable[str]) -> None:
    """Log one warning that lists the options of the client that have no effect. It is logged once in a process."""
    names = sorted(
        given
        for given in options
        for name, prefix in [_split(given)]
        if prefix and _has_no_effect(name)
    )
    text = ", ".join(names)
    if names and text not in _warned and len(_warned) < _WARNED_MAX:
        _warned.add(text)
        _log.warning("Options without effect, because the connector uses no Kafka client: %s", text)


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options whose names have the prefix `kafka.` or `odradek.`, by their lower-case names without the
    prefix. An option with `odradek.` overrides the same one with `kafka.`.
    """
    client: dict[str, str] = {}
    for prefix in reversed(PREFIXES):
        for name, value in options.items():
            short, of_name = _split(name)
            if of_name == prefix:
                client[short] = value
    return client


def _has_no_effect(name: str) -> bool:
    return name in _WITHOUT_EFFECT or name.startswith("config.providers.")


def _of_other_side(name: str, other: Role) -> str:
    counterpart = _COUNTERPARTS.get(name)
    if counterpart is None:
        return f"{name} (an option of the {other.value})"
    return f"{counterpart} ({name} is an option of the {other.value})"


def _by_lower(names: Iterable[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}


def _split(given: str) -> tuple[str, str]:
    """Return the lower-case name of an option without its prefix, and the prefix."""
    lowered = given.lower()
    prefix = next((prefix for prefix in PREFIXES if lowered.startswith(prefix)), "")
    return lowered.removeprefix(prefix), prefix


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    """Return the name in `known` (by its lower-case name) that is most similar to `name`, if it is similar enough."""
    ratio, nearest = max((SequenceMatcher(None, k, name).ratio(), k) for k in known)
    return known[nearest] if ratio >= _RATIO_MIN else None
