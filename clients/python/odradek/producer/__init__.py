"""The producer of the SDK. Its modules `partition_queue`, `accumulator` and `partitioner` make decisions
without I/O.
"""
