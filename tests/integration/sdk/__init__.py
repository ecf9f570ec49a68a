"""Tests of the SDK against clusters of real processes."""
