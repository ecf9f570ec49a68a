"""Replication streams: the leader's end and the follower's end.

A follower opens streams to each leader. In a stream it *attaches* partitions, which asks the leader for their records
from the follower's log end on, and grants *credit*, the number of bytes that the leader may send.
"""
