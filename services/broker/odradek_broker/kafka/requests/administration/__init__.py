"""Requests about the cluster, its brokers, configs, quotas, rights and users."""
