"""The group coordinator and the transaction coordinator, and the host that runs their state machines on internal
topics.

coordinator_host     loads and unloads a state machine on each partition of an internal topic that this broker leads
shard_loading        reads a partition and replays its records and markers
hosted_shard         the state machine of one partition, and its responses, which wait for the high watermark
turn_writes          the records that one turn of the event loop decides, as one append
group_coordinator    the group coordinator of this broker, as both protocols' request handlers call it
"""
