"""The admin client's descriptions of consumer groups."""

from __future__ import annotations

from odradek import TopicPartition
from odradek.cli.group import _known_ends
from odradek.testing import MemoryCluster


async def test_ends_are_told_of_what_has_a_leader_and_nothing_waits_for_the_rest() -> None:
    cluster = MemoryCluster(brokers=2)
    cluster.create_topic("t", 2)
    cluster.move_leader("t", 1, -1)
    names = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("deleted", 0)]
    async with cluster.client() as client:
        assert await _known_ends(client, names) == {TopicPartition("t", 0): 0}
        assert await _known_ends(client, names[1:]) == {}
