"""The group coordinator and the transaction coordinator, and the host that runs their state machines on internal
topics.

coordinator_host     loads and closes a state machine for each partition of an internal topic that this broker leads
shard_loading        reads a partition and replays its records and markers
hosted_shard         runs the state machine of one partition, and sends its responses after its records are committed
turn_writes          combines the records of one iteration of the event loop into one append
group_coordinator    the group coordinator of this broker, which the request handlers of both protocols call
"""
