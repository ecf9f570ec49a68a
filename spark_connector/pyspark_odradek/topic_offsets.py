"""The driver's look-ups in the cluster: partitions, their first and last offsets, and offsets by time.

The look-ups run on the event loop of the process's link. `TopicOffsets` has blocking methods, which Spark's threads
call.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from odradek.cluster.methods import METADATA
from odradek.cluster.offset_lookup import look_up_offsets
from odradek.errors import UnknownTopic
from odradek.partitions import TopicPartition
from odradek_protocol.rpc.v1 import broker_service_pb2 as pb
from pyspark_odradek.offsets import EARLIEST, LATEST, PartitionOffsets, report_data_loss
from pyspark_odradek.process_link import link_to
from pyspark_odradek.source_options import (
    Anchor,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    SourceOptions,
)

BEHIND_S_MAX: Final = 10.0
"""How long to repeat the look-up of an end offset that is below the position of the query. The end offset may be too
low for a moment, because a new leader does not know its high watermark yet.
"""
_BEHIND_PAUSE_S: Final = 0.1
_MARGIN_S: Final = 5.0


class TopicOffsets:
    """Look-ups of partitions and offsets for one source. Every call waits at most for the source's poll timeout.

    If the option failOnDataLoss is false, the results of `earliest` and `latest` lack topics that were deleted in the
    meantime. If it is true, both raise UnknownTopic.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._link = link_to(options.connection)
        self._cluster = self._link.cluster
        self._timeout_s = options.poll_timeout_ms / 1000

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the subscription of the source has now, sorted.

        Raises:
            UnknownTopic: a topic of the subscription does not exist.
            WrongListener, BrokersUnavailable: the cluster never responded (`ProcessLink.reach`).
        """
        self._link.reach(self._timeout_s)
        return self._link.run(self._partitions(), timeout_s=self._timeout_s + _MARGIN_S)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """Return the ids of those topics that are in the metadata cache. A task reads by the id, so that it cannot read
        a later topic with the same name.
        """
        cached = {name: self._cluster.cache.topic(name) for name in topics}
        return {name: topic.topic_id for name, topic in cached.items() if topic is not None}

    def earliest(self, partitions: Iterable[TopicPartition]) -> PartitionOffsets:
        """Return the log start offset of each partition."""
        return self._look_up_existing(dict.fromkeys(partitions, EARLIEST))

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        reached: Mapping[TopicPartition, int] | None = None,
    ) -> PartitionOffsets:
        """Return the end of each partition: the last stable offset with read_committed, otherwise the high watermark.

        `reached` has the offsets up to which the query has read. If an end is below its offset in `reached`, the
        look-up is repeated for BEHIND_S_MAX, because a new leader may not know its high watermark yet.
        """
        specs = dict.fromkeys(partitions, LATEST)
        deadline_s = time.monotonic() + BEHIND_S_MAX
        while True:
            ends = self._look_up_existing(specs)
            if reached is None or time.monotonic() > deadline_s:
                return ends
            if all(end >= reached.get(name, 0) for name, end in ends.items()):
                return ends
            time.sleep(_BEHIND_PAUSE_S)

    def resolve(self, bound: Bound, *, is_start: bool) -> PartitionOffsets:
        """Return the offset of each present partition for a start or an end in the options, for example `latest`.

        Raises:
            ValueError: `bound` does not name exactly the present partitions, or no record is at or after a time.
            DataLoss: a start offset does not exist any more, and the option failOnDataLoss is true.
        """
        names = self.partitions()
        if bound is Anchor.EARLIEST:
            return self.earliest(names)
        if bound is Anchor.LATEST:
            return self.latest(names)
        if isinstance(bound, AtOffsets):
            return self._at_offsets(bound.offsets, names, is_start=is_start)
        if isinstance(bound, AtTimestamps):
            if bound.timestamps_ms.keys() != set(names):
                position = "start" if is_start else "end"
                raise ValueError(
                    f"Partitions specified for Kafka timestamp based {position} offsets don't match"
                    " what are assigned. Maybe topic partitions are created or deleted while the"
                    " query is running, or you didn't specify all the partitions."
                    f" Specified: {_named(bound.timestamps_ms)} Assigned: {_named(names)}"
                )
            return self._at_times(bound.timestamps_ms, is_start=is_start)
        assert isinstance(bound, AtTimestamp), bound
        return self._at_times(dict.fromkeys(names, bound.timestamp_ms), is_start=is_start)

    def first_at_or_after(self, timestamps_ms: Mapping[TopicPartition, int]) -> PartitionOffsets:
        """Return for each partition the offset of the first record at or after its time, or the partition's end if
        there is no such record.
        """
        offsets = self._look_up(timestamps_ms)
        missing = [name for name, offset in offsets.items() if offset < 0]
        return offsets | self._look_up(dict.fromkeys(missing, LATEST))

    def _at_offsets(
        self, bounds: PartitionOffsets, names: list[TopicPartition], *, is_start: bool
    ) -> PartitionOffsets:
        if bounds.keys() != set(names):
            raise ValueError(
                f"Partitions specified for Kafka {'start' if is_start else 'end'} offsets don't match"
                " what are assigned. Maybe topic partitions are created or deleted while the query is"
                " running. Use -1 for latest, -2 for earliest."
                f" Specified: {_named(bounds)} Assigned: {_named(names)}"
            )
        earliest = self._look_up(dict.fromkeys(names, EARLIEST))
        latest = self._look_up(dict.fromkeys(names, LATEST))
        ends = {EARLIEST: earliest, LATEST: latest}
        resolved: PartitionOffsets = {}
        for name, offset in bounds.items():
            if offset < 0:
                if offset not in ends:
                    raise ValueError(
                        f"offset {offset} of {name} is not valid: use -1 (latest), -2 (earliest) or 0 and above"
                    )
                resolved[name] = ends[offset][name]
                continue
            inside = min(max(offset, earliest[name]), latest[name])
            if is_start and inside != offset:
                report_data_loss(
                    f"Starting offset for {name} was {offset} but consumer reset to {inside}.",
                    is_fatal=self._options.fail_on_data_loss,
                )
            resolved[name] = inside if is_start else offset
        return resolved

    def _at_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, is_start: bool
    ) -> PartitionOffsets:
        if is_start and not self._options.latest_when_no_match:
            offsets = self._look_up(timestamps_ms)
            for name, offset in offsets.items():
                if offset < 0:
                    raise ValueError(
                        f"No offset matched from request of topic-partition {name} and timestamp"
                        f" {timestamps_ms[name]}."
                    )
            return offsets
        return self.first_at_or_after(timestamps_ms)

    def _look_up_existing(self, wanted: Mapping[TopicPartition, int]) -> PartitionOffsets:
        try:
            return self._look_up(wanted)
        except UnknownTopic:
            if self._options.fail_on_data_loss:
                raise
        work = self._partitions_of_all({name.topic for name in wanted})
        existing = set(self._link.run(work, timeout_s=self._timeout_s + _MARGIN_S))
        return self._look_up({name: at for name, at in wanted.items() if name in existing})

    def _look_up(self, wanted: Mapping[TopicPartition, int]) -> PartitionOffsets:
        if not wanted:
            return {}
        self._link.reach(self._timeout_s)
        work = look_up_offsets(
            self._cluster,
            wanted,
            read_committed=self._options.read_committed,
            timeout_s=self._timeout_s,
        )
        offsets = self._link.run(work, timeout_s=self._timeout_s + _MARGIN_S)
        return {name: offsets[name].offset for name in wanted}

    async def _partitions(self) -> list[TopicPartition]:
        subscription = self._options.subscription
        if subscription.partitions:
            return sorted(subscription.partitions)
        topics = subscription.topics
        if subscription.pattern:
            topics = await self._matching(re.compile(subscription.pattern))
        return sorted(await self._partitions_of_all(topics))

    async def _partitions_of_all(self, topics: Iterable[str]) -> list[TopicPartition]:
        by_topic = await asyncio.gather(*(self._partitions_of(topic) for topic in topics))
        return [name for names in by_topic for name in names]

    async def _matching(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        response = await self._cluster.call_any(
            METADATA, pb.MetadataRequest(all_topics=True), timeout_s=self._timeout_s
        )
        return tuple(
            topic.name
            for topic in response.topics
            if not topic.is_internal and not topic.error_code and pattern.fullmatch(topic.name)
        )

    async def _partitions_of(self, name: str) -> list[TopicPartition]:
        is_fatal = self._options.fail_on_data_loss
        try:
            topic = await self._cluster.topic(
                name, timeout_s=self._timeout_s, suggests_topics=is_fatal
            )
        except UnknownTopic:
            if is_fatal:
                raise
            return []
        return [TopicPartition(name, p.partition) for p in topic.partitions]


def _named(names: Iterable[TopicPartition]) -> str:
    return "{" + ", ".join(str(name) for name in sorted(names)) + "}"
