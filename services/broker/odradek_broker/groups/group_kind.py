"""Groups as the coordination host runs them: the glue between GroupShard, its records and the clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odradek_broker.groups.formats import record_codec
from odradek_broker.groups.group_shard import GroupShard
from odradek_broker.groups.group_table import GroupSettings
from odradek_broker.groups.records import GroupRecord
from odradek_broker.groups.step import Step
from odradek_broker.groups.topic_catalog import TopicCatalog


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A ShardKind. The clocks are the caller's: ms, monotonic and wall; `catalog` gives the topics as they are now."""

    settings: GroupSettings
    catalog: Callable[[], TopicCatalog]
    now_ms: Callable[[], int]
    now_wall_ms: Callable[[], int]

    def create(self) -> GroupShard:
        """An empty shard."""
        return GroupShard(settings=self.settings)

    def replay(self, shard: GroupShard, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log; types of newer releases are passed over."""
        record = record_codec.decode(key, value)
        if record is not None:
            shard.replay(record)

    def loaded(self, shard: GroupShard) -> Step:
        """Sessions begin; topics may have gone while nobody coordinated.

        A broker learns of its leadership from the image that it is in. So its topics are not older than those that an
        earlier leader's commits were decided on: what is not among them was deleted, not created since.
        """
        shard.loaded(now_ms=self.now_ms())
        return shard.forget_deleted_topics(self.catalog())

    def tick(self, shard: GroupShard) -> Step:
        """Sessions and rebalances whose time is up."""
        return shard.tick(now_ms=self.now_ms(), wall_ms=self.now_wall_ms())

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return record_codec.encode(record)
