"""Replication streams: the leader's end and the follower's end.

A follower opens streams to each leader. In a stream it *attaches* partitions, which asks the leader for the records of
these partitions from the follower's log end on. It also grants *credit*, the number of bytes that the leader may send.
"""
