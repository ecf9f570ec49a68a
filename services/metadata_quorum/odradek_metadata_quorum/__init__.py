"""The metadata quorum: a Raft log, and the controller, which is active on the Raft leader."""
