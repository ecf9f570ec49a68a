"""Raft for one voter: pysyncobj behind `engine`, and the objects that decide what it does not."""
