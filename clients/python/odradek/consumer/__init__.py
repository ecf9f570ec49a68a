"""SDK: consumer."""
