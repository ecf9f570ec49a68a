"""SDK: sync."""
