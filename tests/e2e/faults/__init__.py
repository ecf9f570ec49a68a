"""Processes that are killed, stopped and started again under load; what clients see of it."""
