"""Code that all processes share: settings, clock, lifecycle, logs, metrics, servers, TLS."""
