"""Limits for each client of a process: bytes, connections, loop time, failed logins and audit log lines."""
