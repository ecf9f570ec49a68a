"""Files of a data directory that belong to no segment, and directories of deleted or stray partitions. `LogDirectory`
uses them.
"""
