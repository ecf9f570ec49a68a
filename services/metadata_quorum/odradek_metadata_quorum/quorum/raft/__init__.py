"""Raft: pysyncobj with everything that touches disk, network or state replaced."""
