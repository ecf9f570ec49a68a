"""What a consumer group is subscribed to, and which partitions each of its members shall own.

The group's epoch rises when that may have changed; targets are computed for an epoch, by the assignor that most members
ask for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from odradek_broker.groups.assignors import ASSIGNORS
from odradek_broker.groups.consumer_group_settings import ConsumerGroupSettings
from odradek_broker.groups.consumer_group_state import ConsumerGroupState
from odradek_broker.groups.records import (
    ConsumerMember,
    GroupRecord,
    GroupTopicsRecord,
    TopicSnapshot,
)
from odradek_broker.groups.topic_catalog import InvalidPattern, TopicCatalog
from odradek_protocol.identity import TopicName


@dataclass(slots=True, kw_only=True)
class ConsumerGroupTargets(ConsumerGroupState):
    """See the module's essay."""

    settings: ConsumerGroupSettings
    _catalog_version: int = -1

    def update_epoch(
        self, catalog: TopicCatalog, records: list[GroupRecord], *, subscription_changed: bool
    ) -> None:
        """Raise the group's epoch if its members' subscriptions, or the topics of those, have changed.

        Looked at again when members went: what they alone were subscribed to is the group's no longer.
        """
        has_targets = self.epoch == self.target_epoch
        if has_targets and not subscription_changed and catalog.version == self._catalog_version:
            return
        self._catalog_version = catalog.version
        names: set[TopicName] = set()
        for member in self.members.values():
            names |= self._subscribed(member, catalog)
        snapshot = tuple(
            TopicSnapshot(topic_id=catalog.topics[n][0], topic=n, partitions=catalog.topics[n][1])
            for n in sorted(names)
            if n in catalog.topics
        )
        if snapshot != self.topics:
            self.emit(GroupTopicsRecord(group_id=self.group_id, topics=snapshot), records)
        elif not subscription_changed:
            return
        self.emit_epoch(self.epoch + 1, records)

    def _subscribed(self, member: ConsumerMember, catalog: TopicCatalog) -> set[TopicName]:
        names = set(member.subscribed_topics)
        if member.subscribed_regex:
            with suppress(
                InvalidPattern
            ):  # refused when it came; kept only by an older coordinator
                matched = catalog.matching(member.subscribed_regex)
                host = member.client_host.removeprefix("/")
                names |= catalog.visible(member.principal, host, matched)
        return names

    def compute_targets(self, catalog: TopicCatalog, records: list[GroupRecord]) -> None:
        """What each member shall own at the present epoch; little moves from the last targets."""
        by_name = {snapshot.topic: snapshot.topic_id for snapshot in self.topics}
        subscriptions = {
            m.member_id: frozenset(by_name[n] for n in self._subscribed(m, catalog) if n in by_name)
            for m in self.members.values()
        }
        counts = {snapshot.topic_id: snapshot.partitions for snapshot in self.topics}
        targets = ASSIGNORS[self.assignor](subscriptions, counts, self.targets)
        for member_id, target in sorted(targets.items()):
            if self.targets.get(member_id) != target:
                self.emit_target(member_id, target, records)
        self.emit_target_epoch(self.epoch, records)

    @property
    def assignor(self) -> str:
        """The one that most members ask for; the default if none does."""
        wanted = [m.server_assignor for m in self.members.values() if m.server_assignor]
        return (
            max(sorted(set(wanted)), key=wanted.count) if wanted else self.settings.default_assignor
        )
