"""Commands that run processes, or prepare their directories."""
