"""Replication streams: the ends that a leader and a follower have of them."""
