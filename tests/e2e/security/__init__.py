"""A cluster with TLS, users, certificates and rights, end to end."""
