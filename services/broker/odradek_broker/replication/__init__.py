"""The shell around partition/: this broker's replicas, their logs and their replication streams."""
