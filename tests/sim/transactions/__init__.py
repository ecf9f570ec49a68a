"""Proofs about transactions: the explicit-state model of the protocol."""
