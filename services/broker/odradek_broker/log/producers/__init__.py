"""What a partition remembers of each idempotent or transactional producer."""
