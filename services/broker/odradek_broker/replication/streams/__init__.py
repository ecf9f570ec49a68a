"""Replication streams: the leader's end and the follower's end."""
