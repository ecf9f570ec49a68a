"""Callers of the gateway: their authentication, the limits for each caller, and acting as a caller towards brokers."""
