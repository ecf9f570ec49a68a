"""Transactions on real clusters, with unmodified clients."""
