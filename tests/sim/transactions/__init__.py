"""The simulator of transactions, and the explicit-state model of the transaction protocol."""
