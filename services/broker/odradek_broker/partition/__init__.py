"""The decisions of one replica of a partition, without I/O: it takes events and returns effects, which its host
(replication/partition_host.py) carries out.

Public: `Replica` with its `ReadBound` (replica.py), the events it takes (events.py), the effects and `DataDue` it
returns (effects.py), `LogAtOpen` (log_positions.py), `ReplicaSettings` (settings.py), `ProducerSequences`, which the
log implements (produces.py), and `CoordinatorEpochs` (marker_writes.py).

Read replica.py first: the role of a replica, and the table that hands each event to its handler. Then leader.py with
produces.py, transaction_gate.py, marker_writes.py, deletes.py, followers.py, isr.py and high_watermark.py: the work of
a leader. Then follower.py with truncation.py: the work of a follower. README.md lists the rules (R1 ..) that the
docstrings refer to.
"""
