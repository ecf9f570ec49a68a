"""This broker's replicas, with their logs and replication streams: all the I/O that the decisions of `partition/`
ask for.
"""
