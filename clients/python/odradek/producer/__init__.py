"""The producer of the SDK. `partition_queue`, `accumulator` and `partitioner` decide without input or output."""
