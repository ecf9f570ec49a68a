"""What a voter keeps on disk: write-ahead log, vote, snapshots, the directory's identity."""
