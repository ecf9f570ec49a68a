"""The broker: keeps partitions on disk, replicates them, serves clients."""
