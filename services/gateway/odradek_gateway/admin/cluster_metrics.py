"""The cluster under kafka_exporter's names, which dashboards and alerts read as they are.

Everything is asked for at a scrape; scrapes at the same time share one answer. Offsets and groups are each asked for
with a bound: if one of them cannot be had, what depends on it is left out, and odradek_gateway_scrape_failed tells so.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily

from odradek.admin.descriptions import TopicDescription
from odradek.cluster.metadata_cache import Broker
from odradek.errors import OdradekError
from odradek.offsets import EARLIEST, LATEST
from odradek.partitions import TopicPartition
from odradek_gateway.cluster_access import ClusterAccess
from odradek_runtime.logs import event_log

_PART_S: Final = 10.0
_GROUPS_AT_ONCE: Final = 16
_PARTITION: Final = ("topic", "partition")
_GROUP_PARTITION: Final = ("consumergroup", "topic", "partition")
_log = event_log(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How many members a group has, and what it committed."""

    members: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one scrape found. None: could not be had in time."""

    brokers: list[Broker]
    topics: list[TopicDescription]
    starts: Mapping[TopicPartition, int] | None
    ends: Mapping[TopicPartition, int] | None
    groups: Mapping[str, GroupProgress] | None


class ClusterMetrics:
    """One a process."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._asking: asyncio.Task[Snapshot] | None = None

    async def families(self) -> list[GaugeMetricFamily]:
        """Of the cluster as it is now. Raises what the SDK raises when no broker answers."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="metrics of the cluster")
        return families_of(await asyncio.shield(self._asking))

    async def _ask(self) -> Snapshot:
        admin = self._cluster.admin
        brokers, topics = await asyncio.gather(
            admin.list_brokers(), admin.list_topics(include_internal=True)
        )
        led = [
            TopicPartition(topic.name, p.partition)
            for topic in topics
            for p in topic.partitions
            if p.leader_id >= 0
        ]
        starts, ends, groups = await asyncio.gather(
            _bounded("offsets", self._offsets(led, EARLIEST)),
            _bounded("offsets", self._offsets(led, LATEST)),
            _bounded("groups", self._groups()),
        )
        return Snapshot(brokers=brokers, topics=topics, starts=starts, ends=ends, groups=groups)

    async def _offsets(
        self, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        found = await self._cluster.admin.list_offsets(dict.fromkeys(partitions, which))
        return {name: at.offset for name, at in found.items()}

    async def _groups(self) -> dict[str, GroupProgress]:
        admin = self._cluster.admin
        at_once = asyncio.Semaphore(_GROUPS_AT_ONCE)
        progress: dict[str, GroupProgress] = {}

        async def ask(group: str) -> None:
            async with at_once:
                try:
                    described = await admin.describe_group(group)
                    offsets = await admin.group_offsets(group)
                except OdradekError as error:
                    if error.retriable:
                        raise
                    return  # it was deleted meanwhile, or may not be seen
            progress[group] = GroupProgress(members=len(described.members), offsets=offsets)

        await asyncio.gather(*(ask(one.group) for one in await admin.list_groups()))
        return progress


async def _bounded(part: str, asking: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(_PART_S):
            return await asking
    except (OdradekError, TimeoutError) as error:
        _log.warning("A part of a scrape failed", part=part, reason=repr(error))
        return None


def families_of(found: Snapshot) -> list[GaugeMetricFamily]:
    """As Prometheus reads it."""
    brokers = GaugeMetricFamily("kafka_brokers", "Number of brokers in the cluster")
    brokers.add_metric([], len(found.brokers))
    info = GaugeMetricFamily("kafka_broker_info", "Brokers", labels=["id", "address"])
    for broker in found.brokers:
        info.add_metric([str(broker.broker_id), broker.kafka_endpoint or broker.grpc_endpoint], 1)
    failed = GaugeMetricFamily(
        "odradek_gateway_scrape_failed", "1 if this part could not be had in time", labels=["part"]
    )
    failed.add_metric(["offsets"], int(found.starts is None or found.ends is None))
    failed.add_metric(["groups"], int(found.groups is None))
    families = [brokers, info, failed, *_topic_families(found.topics)]
    for name, text, offsets in (
        ("kafka_topic_partition_current_offset", "Offset after the last record", found.ends),
        ("kafka_topic_partition_oldest_offset", "First offset", found.starts),
    ):
        family = GaugeMetricFamily(name, text, labels=_PARTITION)
        for at, offset in (offsets or {}).items():
            family.add_metric([at.topic, str(at.partition)], offset)
        families.append(family)
    return [*families, *_group_families(found)]


def _topic_families(topics: list[TopicDescription]) -> list[GaugeMetricFamily]:
    partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions", labels=["topic"])
    names = {
        "leader": "Id of the leader",
        "leader_is_preferred": "1 if the leader is the preferred one",
        "replicas": "Number of replicas",
        "in_sync_replica": "Number of in-sync replicas",
        "under_replicated_partition": "1 if replicas are out of sync",
    }
    families = {
        name: GaugeMetricFamily(f"kafka_topic_partition_{name}", text, labels=_PARTITION)
        for name, text in names.items()
    }
    for topic in topics:
        partitions.add_metric([topic.name], len(topic.partitions))
        for p in topic.partitions:
            values = {
                "leader": p.leader_id,
                "leader_is_preferred": int(bool(p.replicas) and p.leader_id == p.replicas[0]),
                "replicas": len(p.replicas),
                "in_sync_replica": len(p.isr),
                "under_replicated_partition": int(len(p.isr) < len(p.replicas)),
            }
            for name, value in values.items():
                families[name].add_metric([topic.name, str(p.partition)], value)
    return [partitions, *families.values()]


def _group_families(found: Snapshot) -> list[GaugeMetricFamily]:
    prefix = "kafka_consumergroup"
    members = GaugeMetricFamily(f"{prefix}_members", "Members", labels=["consumergroup"])
    current = GaugeMetricFamily(
        f"{prefix}_current_offset", "Committed offset", labels=_GROUP_PARTITION
    )
    lag = GaugeMetricFamily(
        f"{prefix}_lag", "Records after the committed offset", labels=_GROUP_PARTITION
    )
    sums = {
        name: GaugeMetricFamily(f"{prefix}_{name}_sum", text, labels=_GROUP_PARTITION[:2])
        for name, text in (
            ("current_offset", "Committed offsets of a topic, together"),
            ("lag", "Lag of a topic's partitions, together"),
        )
    }
    ends = found.ends or {}
    for group, progress in (found.groups or {}).items():
        members.add_metric([group], progress.members)
        current_of: defaultdict[str, int] = defaultdict(int)
        lag_of: defaultdict[str, int] = defaultdict(int)
        for at, offset in progress.offsets.items():
            current.add_metric([group, at.topic, str(at.partition)], offset)
            current_of[at.topic] += offset
            if at in ends:  # else its topic is gone, or it has no leader now
                behind = max(0, ends[at] - offset)
                lag.add_metric([group, at.topic, str(at.partition)], behind)
                lag_of[at.topic] += behind
        for name, by_topic in (("current_offset", current_of), ("lag", lag_of)):
            for topic, value in by_topic.items():
                sums[name].add_metric([group, topic], value)
    return [members, current, lag, *sums.values()]
