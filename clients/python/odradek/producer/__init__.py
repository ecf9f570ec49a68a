"""SDK: producer."""
