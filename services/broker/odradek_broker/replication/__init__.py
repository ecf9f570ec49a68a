"""This broker's replicas, with their logs and replication streams. This package does all the I/O for the decisions of
`partition/`.
"""
