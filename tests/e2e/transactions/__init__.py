"""Tests of transactions on real clusters with unmodified clients."""
