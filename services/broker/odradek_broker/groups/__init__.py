"""Consumer groups: the decisions of a group coordinator for one partition of `__consumer_offsets`, without I/O.

Public: `GroupShard` (group_shard.py), its `offsets` (offset_shard.py) and `table` (group_table.py), `GroupSettings`
(settings.py), the requests and responses (messages.py), the records (records.py) with their codec
(formats/record_codec.py). Handlers return a `coordinator_step.Step`. `odradek_broker.coordination` hosts the shards.

Read coordinator_step.py and group_shard.py first. The latter has the handler of each request, which finds the group
that it concerns. Then offset_shard.py with pending_offsets.py: what groups commit, also in transactions. Then
classic_group.py with classic_members.py: one group of the classic protocol. Then consumer_group.py with
consumer_group_state.py, reconciliation.py and assignors.py: one group of the consumer protocol (KIP-848). Then
classic_membership.py and migration.py: how one group has members of both protocols, and how it changes its protocol.
"""
