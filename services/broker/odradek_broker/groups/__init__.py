"""Consumer groups: the logic of a group coordinator for one partition of `__consumer_offsets`, without I/O.

The public names are `GroupShard` (group_shard.py) with its `offsets` (offset_shard.py) and `table` (group_table.py),
`GroupSettings` (settings.py), the requests and responses (messages.py), and the records (records.py) with their codec
(formats/record_codec.py). Handlers return a `coordinator_step.Step`. `odradek_broker.coordination` hosts the shards.

A good order of reading:

  1. coordinator_step.py, and group_shard.py, which has the handler of each request about groups
  2. offset_shard.py and pending_offsets.py: committed offsets, also in transactions
  3. classic_group.py and classic_members.py: one group of the classic protocol
  4. consumer_group.py, consumer_group_state.py, reconciliation.py and assignors.py: one group of the consumer protocol
     (KIP-848)
  5. classic_membership.py and migration.py: groups with members of both protocols, and the change of the protocol
"""
