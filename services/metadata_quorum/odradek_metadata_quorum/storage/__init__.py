"""The files of a voter: write-ahead log, vote, snapshots, and the identity of the data directory."""
