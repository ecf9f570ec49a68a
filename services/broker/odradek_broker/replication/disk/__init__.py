"""Blocking disk work of the replicas: the thread pool, periodic upkeep, full disks and stray logs."""
