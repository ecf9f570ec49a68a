"""Raft for one voter: the library pysyncobj (`engine`), the rules that it lacks, and the running `voter`.

`quorum` is the replicated log as `rpc` and the process use it.
"""
