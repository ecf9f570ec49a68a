"""Raft for one voter: the library pysyncobj (`engine`), the rules that the library lacks, and the running `voter`.

`quorum` is the interface that the rest of the process uses.
"""
