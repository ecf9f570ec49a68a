"""The quorum under a simulated clock, disk and network."""
