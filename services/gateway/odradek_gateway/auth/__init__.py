"""Callers of the gateway: how they authenticate, how much capacity each may use, and how calls to brokers name them."""
