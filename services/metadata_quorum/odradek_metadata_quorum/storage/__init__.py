"""The files of a voter: the write-ahead log, the vote, snapshots, and the identity of the data directory."""
