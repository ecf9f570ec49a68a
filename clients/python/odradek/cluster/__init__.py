"""SDK: cluster."""
