"""Generic host of replicated state machines on internal topics: load, handle, write, answer, timers.

coordinator_host    one internal topic: which of its partitions are led here, loading and unloading them
hosted_shard        one partition's state machine: its queue of answers that wait for the watermark
internal_topics     creates the topic when it is first needed
"""
