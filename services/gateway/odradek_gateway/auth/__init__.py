"""Callers of the gateway: how they authenticate, how much capacity each may use, how brokers know them."""
