"""Processes are killed, stopped and restarted under load, and the tests measure how clients are
affected.
"""
