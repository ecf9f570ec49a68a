"""SDK: transports."""
