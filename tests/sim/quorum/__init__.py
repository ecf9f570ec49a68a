"""The simulator of the metadata quorum: production voters on a simulated clock, disk and network."""
