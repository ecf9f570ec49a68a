"""What every process needs, once: settings, clock, lifecycle, logs, metrics, servers, TLS."""
