"""Bytes on disk: the write-ahead log, the vote, snapshots, the identity of the directory."""
