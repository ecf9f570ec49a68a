"""Decisions of the controller, tested without a clock, a network or a disk."""
