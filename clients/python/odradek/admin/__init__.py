"""SDK: admin."""
