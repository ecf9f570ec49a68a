"""The topics that groups may subscribe to, as the metadata image has them at a moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from odradek_protocol.identity import TopicId, TopicName, TopicPartition


class InvalidPattern(ValueError):
    """A subscription's regular expression does not compile."""


def all_are_visible(principal: str, host: str, names: frozenset[TopicName]) -> frozenset[TopicName]:
    """Without an authorizer."""
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCatalog:
    """`version` rises whenever `topics`, or what is visible, changed. `matching` gives the names that a pattern matches
    in time linear in their length (RE2 syntax), and raises InvalidPattern. `visible` leaves those of the names that a
    principal (User:alice) at an address may know of."""

    version: int
    topics: Mapping[TopicName, tuple[TopicId, int]]  # id, partition count
    matching: Callable[[str], frozenset[TopicName]]
    visible: Callable[[str, str, frozenset[TopicName]], frozenset[TopicName]] = all_are_visible

    def id_of(self, partition: TopicPartition) -> TopicId | None:
        """The id of its topic; None where there is no such partition."""
        topic_id, count = self.topics.get(partition.topic, (None, 0))
        return topic_id if 0 <= partition.partition < count else None
