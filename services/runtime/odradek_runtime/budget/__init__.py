"""Limits for each client of a process: bytes in memory, connections, time on the event loop, failed logins and
audit log lines.
"""
