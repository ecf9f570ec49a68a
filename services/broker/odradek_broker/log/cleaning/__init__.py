"""How a log gets smaller: retention by age and size, compaction by key."""
