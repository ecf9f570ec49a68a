"""The producer of the SDK. Its modules `partition_queue`, `accumulator` and `partitioner` are sans-IO."""
