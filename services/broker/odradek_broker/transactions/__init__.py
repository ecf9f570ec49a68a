"""Transactions as a sans-IO state machine."""
