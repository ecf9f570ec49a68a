"""The Raft log; the only place that knows pysyncobj."""
