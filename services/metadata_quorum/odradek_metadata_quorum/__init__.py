"""The metadata quorum: Raft, and the controller that runs on the Raft leader."""
