"""The shell around partition/: owner of partitions, replication streams."""
