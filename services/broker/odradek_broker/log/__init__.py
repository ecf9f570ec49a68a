"""Storage on disk: a broker's data directory and the logs of its partitions, in Kafka's file formats.

Public: `LogDirectory` (log_directory.py), `PartitionLog` and `AppendInfo` (partition_log.py), its jobs, which are the
parts of its operations that block (log_jobs.py, compaction.py), the reads that it plans (log_reads.py), `LogConfig`
(log_config.py), `ProducerStates` (producer_state.py), and the interface to the disk with its errors (storage.py).

Read partition_log.py first, then segments/segment.py and sync_progress.py: they show what an append writes and when
it is durable. recovery.py opens a log at start; log_directory.py and directory/ hold what all logs share. README.md
shows how the owner of a log calls its methods, and what survives which failure.
"""
