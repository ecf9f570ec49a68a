"""What lies in a data directory beside the partitions: identity, lock, markers, checkpoints."""
