"""Callers of the gateway: authentication, their shares of its capacity, and requests to brokers on their behalf."""
