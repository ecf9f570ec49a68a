"""Bytes on disk: a broker's data directory and the logs of its partitions, in Kafka's file formats.

Public: `LogDirectory` (log_directory.py), `PartitionLog` and `AppendInfo` (partition_log.py) with the jobs that it
returns (log_jobs.py, compaction.py) and the reads that it plans (log_reads.py), `LogConfig` (log_config.py),
`ProducerStates` (producer_state.py), and the seam to the disk with its errors (storage.py).

Read partition_log.py first, then segments/segment.py and sync_progress.py: what an append writes, and when it is
durable. Then recovery.py, what a start finds; log_directory.py with directory/, what belongs to all logs together.
README.md shows how the owner of a log calls it, and what survives which failure.
"""
