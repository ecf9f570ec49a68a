"""Raft for one voter: pysyncobj behind `engine`, the objects that decide what it does not, and the running `voter`.

`quorum` is the replicated log as `rpc` and the process use it.
"""
