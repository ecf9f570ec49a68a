"""What one client may take of what belongs to all: bytes, connections, loop time, failed logins, log lines."""
