"""The bounds of one client: bytes, connections, loop time, failed logins, audit log lines."""
