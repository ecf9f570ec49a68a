"""Disk work of the replicas that may block: the thread pool, periodic work on logs, full disks and stray logs."""
