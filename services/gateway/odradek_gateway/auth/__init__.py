"""Callers of the gateway: how they authenticate, how much capacity one may use, and requests to brokers for them."""
