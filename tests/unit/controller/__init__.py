"""Tests of the controller's decisions, without a clock, a network or a disk."""
