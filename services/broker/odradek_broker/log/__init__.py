"""Bytes on disk: segments, indexes, checkpoints, recovery, retention, compaction."""
