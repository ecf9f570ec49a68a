"""The broker: stores partitions on disk, replicates them, and serves clients."""
