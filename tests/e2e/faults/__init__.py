"""Processes are killed, stopped and started again under load: how clients are affected."""
